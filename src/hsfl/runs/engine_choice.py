"""What `engine.name = "auto"` becomes, once it is known how much a run computes: worker processes of one thread each where the run is
long enough to earn their start, else this process.

One thread a process gives the same bits wherever the clients are trained, so the choice changes no number. This process takes torch's own number of
threads only where a long run of large batches cannot be spread. What was chosen is kept in config.json.

Workers read the main program again (Python's "spawn"), so they are not chosen where that would begin the run once more, nor for
models and methods that were given from Python and may not be found in another process.
"""

import multiprocessing
import re
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from hsfl import plugins
from hsfl.config import OWN_MODEL, EngineConfig
from hsfl.engines.machine import num_cores
from hsfl.engines.start import why_not_spread
from hsfl.errors import InputError
from hsfl.runs.checks.memory_check import check_memory
from hsfl.runs.prepare import Bench

LONG_FLOPS = 2e12  # of a run, from which workers earn their start (benchmarks/engine_choice.py)
LARGE_FLOPS = 2e9  # of a batch, from which a second thread is worth more than it costs
SHARED_MEMORY = Path("/dev/shm")
GUARD = re.compile(r"""__name__\s*==\s*["']__main__["']""")


def with_chosen_engine(bench: Bench) -> Bench:
    """The bench, whose config says where its clients are trained."""
    config = bench.task.config
    engine = _chosen_engine(bench)
    return replace(bench, task=replace(bench.task, config=config.model_copy(update={"engine": engine})))


def _chosen_engine(bench: Bench) -> EngineConfig:
    config, engine = bench.task.config, bench.task.config.engine
    is_long = run_flops(bench) >= LONG_FLOPS
    most = engine.workers or min(num_cores(), config.train.clients_per_round or config.fleet.num_clients)
    if (is_long or engine.workers) and _can_spread(bench):
        workers = next((count for count in range(most, 1, -1) if _has_room(bench, count)), 1)
        if workers > 1:
            return engine.model_copy(update={"name": "workers", "workers": workers, "threads": engine.threads or 1})
    is_large = sample_flops(bench) * config.train.batch_size >= LARGE_FLOPS
    threads = engine.threads or (torch.get_num_threads() if is_long and is_large else 1)
    return engine.model_copy(update={"name": "inline", "workers": None, "threads": threads})


def _can_spread(bench: Bench) -> bool:
    """Whether other processes can train this run's clients, as far as can be told before they try."""
    config = bench.task.config
    is_built_in = config.model.name != OWN_MODEL and not any(name in plugins.REGISTERED for name in config.named())
    return is_built_in and config.device == "cpu" and why_not_spread(config) is None and _can_spawn()


def _can_spawn() -> bool:
    """Whether a process may begin with the main program of this one: a notebook has none, and a script must not run on import."""
    if multiprocessing.parent_process() is not None:
        return False  # a process of --jobs has one core
    path = getattr(sys.modules["__main__"], "__file__", None)
    try:
        return path is None or GUARD.search(Path(path).read_text()) is not None
    except (OSError, ValueError):
        return False


def _has_room(bench: Bench, num_workers: int) -> bool:
    """Whether memory holds so many workers, and shared memory what they share: samples, the model of the round, and a sum for each."""
    with suppress(InputError):
        if check_memory(bench, num_workers) is None:
            images = (bench.task.feed.images, bench.test)
            shared_bytes = sum(side.x.nbytes + side.y.nbytes for side in images)
            shared_bytes += (3 + 2 * num_workers) * bench.task.initial.num_bytes
            return not SHARED_MEMORY.is_dir() or shutil.disk_usage(SHARED_MEMORY).free > 1.2 * shared_bytes
    return False


def sample_flops(bench: Bench) -> float:
    """FLOPs that training a sample takes, of the whole model."""
    return float(bench.world.cost.client_flops[-1])


def run_flops(bench: Bench) -> float:
    """FLOPs of all rounds, as far as the budget does not end them."""
    train, task = bench.task.config.train, bench.task
    part = (train.clients_per_round or task.num_clients) / task.num_clients
    return sample_flops(bench) * float(task.feed.sizes.sum()) * train.local_epochs * part * train.rounds
