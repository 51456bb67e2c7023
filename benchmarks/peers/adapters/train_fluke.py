"""fluke on the shared work: `FedAVG` with clients and a server of its own classes, in one process.

fluke imports torchvision for models and data sets that are not used here; `torchvision_stub` stands in for it.
"""

from collections.abc import Collection

import torch
from paired_rounds import PairedRounds, read_spec
from shared_work import NUM_CLASSES, WORKS, arrays_of, make_model, read_tensors
from torchvision_stub import stub_torchvision

stub_torchvision()

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.client import Client  # noqa: E402
from fluke.config import OptimizerConfigurator  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.server import Server  # noqa: E402
from fluke.utils import FederationObserver, ServerObserver  # noqa: E402


class RoundDone(FederationObserver, ServerObserver):
    """Tells the measurement that a round is over."""

    def __init__(self, rounds: PairedRounds, model: torch.nn.Module) -> None:
        self.rounds, self.model, self.clients = rounds, model, list[int]()

    def selected_clients(self, round: int, clients: Collection[Client]) -> None:
        self.clients = [client.index for client in clients]

    def end_round(self, round: int) -> None:
        self.rounds.round_done(lambda: arrays_of(self.model), self.clients)


def main() -> None:
    spec = read_spec()
    torch.set_num_threads(1)
    work, shared, memory_format = WORKS[spec["work"]], spec["shared"], spec["memory_format"]
    model, (x, y) = make_model(work, shared, memory_format), read_tensors(work, shared, memory_format)
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    optimizer = OptimizerConfigurator(DDict(name="SGD", lr=work.lr, fused=True))
    clients = []
    for k in range(work.num_clients):
        own = work.samples_of(k)
        loader = FastDataLoader(x[own], y[own], num_labels=NUM_CLASSES, batch_size=work.batch_size, shuffle=False)
        persistency = spec["settings"]["persistency"]
        clients.append(
            Client(k, loader, None, optimizer, torch.nn.CrossEntropyLoss(), local_epochs=1, persistency=persistency)
        )
    server = Server(model, None, clients, weighted=True)
    federation = FedAVG(work.num_clients, None, DDict(), clients, server)
    rounds = PairedRounds(spec)
    federation.set_callbacks([RoundDone(rounds, model)])
    rounds.begin()
    federation.run(rounds.total_rounds, work.per_round / work.num_clients)


if __name__ == "__main__":
    main()
