"""pfl on the shared work: `FederatedAveraging` over a `SimulatedBackend`, in one process or in two that torch.distributed joins.

The second process is this script again, with the variables that torchrun would set. BatchNorm's statistics stay in the model of the
process: pfl sums weights alone.
"""

import os
import socket
import subprocess
import sys
from functools import partial
from typing import Any

from paired_rounds import PairedRounds, read_spec
from shared_work import WORKS, make_model, read_tensors

SPEC = read_spec()
PROCESSES = SPEC["processes"]


def start_second_process() -> subprocess.Popen[bytes] | None:
    """Join this process with another one, before pfl is imported. Returns the other process where this is the first."""
    if PROCESSES == 1 or "RANK" in os.environ:
        return None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"TORCHELASTIC_RUN_ID": "peers", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"GLOO_SOCKET_IFNAME": "lo"}
    second = subprocess.Popen([sys.executable, *sys.argv], env=os.environ | shared | {"RANK": "1", "LOCAL_RANK": "1"})
    os.environ.update(shared | {"RANK": "0", "LOCAL_RANK": "0"})
    return second


SECOND = start_second_process()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.aggregate.weighting import WeightByDatapoints  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.dataset import Dataset  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.sampling import MinimizeReuseUserSampler  # noqa: E402
from pfl.hyperparam.base import NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics, Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402

FIRST = os.environ.get("RANK", "0") == "0"


class Module(torch.nn.Module):
    """The shared model with the two methods that pfl asks for."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {"samples": Weighted(0.0, len(y))}  # nothing is evaluated


class RoundDone(TrainingProcessCallback):
    """Tells the measurement that a round is over; the second process waits meanwhile."""

    def __init__(self, rounds: PairedRounds | None, model: torch.nn.Module) -> None:
        self.rounds, self.model = rounds, model

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if self.rounds is not None:
            self.rounds.round_done(self.arrays)
        if PROCESSES > 1:
            torch.distributed.barrier()
        if self.rounds is not None:
            self.rounds.begin()
        return False, Metrics()

    def arrays(self) -> list[np.ndarray]:
        return [parameter.detach().numpy() for parameter in self.model.parameters()]  # buffers are not averaged


def main() -> None:
    torch.set_num_threads(1)
    work, shared, memory_format = WORKS[SPEC["work"]], SPEC["shared"], SPEC["memory_format"]
    module, (x, y) = Module(make_model(work, shared, memory_format)).train(), read_tensors(work, shared, memory_format)
    data = {k: Dataset((x[work.samples_of(k)], y[work.samples_of(k)]), user_id=k) for k in range(work.num_clients)}
    dataset = FederatedDataset(data.__getitem__, MinimizeReuseUserSampler(list(range(work.num_clients))))
    model = PyTorchModel(
        module, partial(torch.optim.SGD, fused=True), torch.optim.SGD(module.parameters(), lr=1.0, fused=True)
    )
    rounds = PairedRounds(SPEC) if FIRST else None
    num_rounds = PairedRounds(SPEC).total_rounds
    parameters = NNAlgorithmParams(
        central_num_iterations=num_rounds, evaluation_frequency=10 * num_rounds, train_cohort_size=work.per_round, val_cohort_size=0
    )  # fmt: skip
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch_size)
    if PROCESSES > 1:
        torch.distributed.barrier()
    if rounds is not None:
        rounds.begin()
    FederatedAveraging().run(
        parameters, SimulatedBackend(dataset, None, postprocessors=[WeightByDatapoints()]), model, local,
        callbacks=[RoundDone(rounds, module)], send_metrics_to_platform=False,
    )  # fmt: skip
    if SECOND is not None:
        SECOND.wait()


if __name__ == "__main__":
    main()
