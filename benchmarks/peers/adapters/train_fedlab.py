"""FedLab on the shared work: its standalone pipeline with the serial SGD trainer and the synchronous server, in one process.

FedLab averages weights alone; BatchNorm's statistics stay in the trainer's model. It imports torchvision for data sets that are not used
here; `torchvision_stub` stands in for it.
"""

import logging

import numpy as np
import torch
from paired_rounds import PairedRounds, read_spec
from shared_work import WORKS, make_model, read_tensors
from torchvision_stub import stub_torchvision

stub_torchvision()

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402

Batches = list[tuple[torch.Tensor, torch.Tensor]]


class Clients:
    """The data set that the trainer asks for the batches of a client: views of all samples, made once."""

    def __init__(self, batches: list[Batches]) -> None:
        self.batches = batches

    def get_dataloader(self, client: int, batch_size: int) -> Batches:
        return self.batches[client]


class Pipeline(StandalonePipeline):
    """Tells the measurement that a round is over, where FedLab's own pipeline would evaluate."""

    def __init__(self, handler: SyncServerHandler, trainer: SGDSerialClientTrainer, rounds: PairedRounds) -> None:
        super().__init__(handler, trainer)
        self.rounds, self.clients = rounds, list[int]()
        sample = handler.sample_clients

        def sample_and_note() -> list[int]:
            self.clients = sample()
            return self.clients

        handler.sample_clients = sample_and_note

    def evaluate(self) -> None:
        self.rounds.round_done(self.arrays, self.clients)

    def arrays(self) -> list[np.ndarray]:
        return [parameter.detach().numpy() for parameter in self.handler.model.parameters()]  # buffers are not averaged


def main() -> None:
    spec = read_spec()
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    work, shared = WORKS[spec["work"]], spec["shared"]
    model, (x, y) = make_model(work, shared), read_tensors(work, shared)
    trainer = SGDSerialClientTrainer(model, work.num_clients)
    own = [work.samples_of(k) for k in range(work.num_clients)]
    trainer.setup_dataset(
        Clients([list(zip(x[part].split(work.batch_size), y[part].split(work.batch_size))) for part in own])
    )
    trainer.setup_optim(1, work.batch_size, work.lr)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), work.lr, fused=True)
    rounds = PairedRounds(spec)
    rounds.memory_format = "contiguous"  # FedLab flattens weights with `view(-1)`, which channels-last ones refuse
    handler = SyncServerHandler(model, rounds.total_rounds, work.per_round / work.num_clients)
    pipeline = Pipeline(handler, trainer, rounds)
    rounds.begin()
    pipeline.main()


if __name__ == "__main__":
    main()
