"""How long a main server takes for its parts of the end of a round: to sum what one client trained, to test the averaged model, and to write
a checkpoint. `hsfl measure --server` enters them into a fleet file.

Of each the median of a few tries counts. A test is timed on some of the samples, and takes in proportion as long for all of them.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hsfl.models.state import UnitState, read_state
from hsfl.runs.run_folder.checkpoint import save_tensors
from hsfl.training.aggregate import PartialSum
from hsfl.training.batches import Images
from hsfl.training.evaluation import evaluate_model, evaluation_batch_size
from hsfl.training.roles import Server

if TYPE_CHECKING:
    from hsfl.models.units import SplitModel

TRIES = 3
CLIENTS = 2  # that are summed in a try, so that a division at the end has its part
MOST_TESTED = 1000  # samples of a try


def time_server_parts(model: "SplitModel", folder: Path, test: Images | None, num_outputs: int) -> dict[str, float]:
    """Seconds by part: `average` (for each client), `checkpoint` (into a folder on the disk of `folder`), and `test` where there are test
    samples."""
    state = read_state(model)
    parts = {
        "average": _median_s(lambda: _average(state)) / CLIENTS,
        "checkpoint": _median_s(lambda: _write(state, folder)),
    }
    if test is not None:
        few = Images(test.x[:MOST_TESTED], test.y[:MOST_TESTED], test.mean, test.std)
        size = evaluation_batch_size(test, num_outputs)
        parts["test"] = len(test) / len(few) * _median_s(lambda: evaluate_model(model.eval(), few, num_outputs, size))
    return parts


def _median_s(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(TRIES):
        began_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_s)
    return median(times)


def _average(state: UnitState) -> None:
    server = Server(state, PartialSum.zero(state, float(CLIENTS)))
    for client in range(CLIENTS):
        server.finish(client, state, 1.0)
        server.commit([client])
    server.close()


def _write(state: UnitState, folder: Path) -> None:
    with TemporaryDirectory(dir=folder) as scratch:
        save_tensors(Path(scratch) / "state", {"floats": state.floats, "ints": state.ints})
