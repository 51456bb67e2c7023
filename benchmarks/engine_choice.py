"""When workers earn their start: whole runs inline with one thread, inline with a thread for each core, and with workers, from start to end.

    python benchmarks/engine_choice.py            # small clients, ResNet-18 and the CNN on larger images; runs of several lengths
    python benchmarks/engine_choice.py --quick

Each row is a run: its FLOPs in all and of a batch, the seconds of each engine, and what `engine.name = "auto"` takes. The constants
`LONG_FLOPS` and `LARGE_FLOPS` of `hsfl.runs.engine_choice` come from here. Wanted: what `auto` takes is never more than 1.1 times as slow as the quickest, but for
runs of few seconds, where it may lose one.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from engines import QUICK, RESNET, SMALL, Work, config_of
from hsfl.config import with_changes
from hsfl.engines.machine import num_cores
from hsfl.runs.engine_choice import run_flops, sample_flops, with_chosen_engine
from hsfl.runs.loop import train_run
from hsfl.runs.prepare import prepare
from throughput import images, spread_of, verdict

ENGINES = {
    "inline, 1 thread": ("engine.name=inline", "engine.threads=1"),
    "inline, all threads": ("engine.name=inline", f"engine.threads={num_cores()}"),
    "workers": ("engine.name=workers", f"engine.workers={num_cores()}", "engine.threads=1"),
}
LARGE_CNN = Work("cnn", 10, 10, 256, 64, (3, 64, 64))
LARGE_RESNET = Work("resnet18", 10, 10, 512, 256, (3, 32, 32))


def run_s(work: Work, rounds: int, framework: str, engine: tuple[str, ...]) -> float:
    data = images(work.num_clients * work.num_samples, work.shape)
    config = with_changes(config_of(work, rounds), [f"framework={framework}", *engine])
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        train_run(config, Path(folder) / "run", dataset=data)
    return time.perf_counter() - began


def measure(work: Work, rounds: int, framework: str, repeats: int) -> float:
    """How many times as slow as the quickest engine is the one that auto takes."""
    data = images(work.num_clients * work.num_samples, work.shape)
    bench = prepare(with_changes(config_of(work, rounds), [f"framework={framework}"]), data)
    chosen = with_chosen_engine(bench).task.config.engine
    taken = (
        "workers" if chosen.name == "workers" else "inline, 1 thread" if chosen.threads == 1 else "inline, all threads"
    )
    names = [name for name in ENGINES if name != "workers" or framework == "hsfl"]
    took: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            took[name].append(run_s(work, rounds, framework, ENGINES[name]))
    batch_flops = sample_flops(bench) * work.batch_size
    print(
        f"{work.model}, {framework}, batches of {work.batch_size}, {rounds} rounds: {run_flops(bench):.2g} FLOPs, {batch_flops:.2g} a batch"
    )
    for name in names:
        print(f"    {name:20} {spread_of(took[name])} s{'  <- auto' if name == taken else ''}", flush=True)
    medians = {name: statistics.median(seconds) for name, seconds in took.items()}
    return medians[taken] / min(medians.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    words = parser.parse_args()
    torch.set_num_threads(num_cores())
    if words.quick:
        measure(QUICK, 2, "hsfl", 1)
        return
    few = replace(RESNET, num_samples=96)
    cases = [(SMALL, rounds, "hsfl") for rounds in (2, 8, 32, 96)] + [(few, rounds, "hsfl") for rounds in (1, 4, 12)]
    cases += [(LARGE_CNN, 8, "hsfl"), (SMALL, 16, "psl"), (few, 4, "sl"), (LARGE_CNN, 8, "sl"), (LARGE_RESNET, 1, "sl")]
    for work, rounds, framework in cases:
        times = measure(work, rounds, framework, words.repeats)
        verdict(f"{work.model}, {framework}, {rounds} rounds: auto over the quickest", times, at_most=1.1)


if __name__ == "__main__":
    main()
