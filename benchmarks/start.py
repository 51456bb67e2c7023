"""How long it takes to start: `hsfl --help`, and a run until its first batch is trained, beside Python and torch alone.

    python benchmarks/start.py [--quick] [--repeats 11]

Each repeat starts one process of each kind, one after another, so that a machine that drifts favours nobody. A process ends itself as soon as its batch is
trained. The bare loop imports torch, makes the same small CNN on random images of the same shape, and trains a batch. Runs read the digits: one
under the even allocation with given cuts, one as the defaults have it, which plans its cuts first (files of numba are compiled before).

Wanted: `hsfl --help` in 0.3 s, the first batch of the even run at most 1 s after the bare loop's.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from throughput import spread_of, verdict

BARE = """
import os, torch
import torch.nn.functional as F
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Flatten(), torch.nn.Linear(64 * 4, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10),
)
optimizer = torch.optim.Adam(model.parameters(), fused=True)
F.cross_entropy(model(torch.randn(8, 1, 8, 8)), torch.arange(8)).backward()
optimizer.step()
os._exit(0)
"""
RUN = """
import os, sys
from hsfl.cli import app
from hsfl.training.optimizer import Optimizer
Optimizer.step = lambda optimizer, step=Optimizer.step: (step(optimizer), os._exit(0))
app(sys.argv[1:])
"""
SETTINGS = ("model.name=cnn", "data.image_size=8", "fleet.num_clients=3", "train.batch_size=8", "engine.name=inline")
EVEN = ("fleet.cuts=[1, 2, 5]", "allocation.policy=even")
KINDS = ("python -c pass", "import torch", "hsfl --help", "bare loop", "run, even", "run, planned")


def commands(scratch: Path) -> dict[str, list[str]]:
    """The words of each kind of process."""
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    even = [word for setting in EVEN for word in ("--set", setting)]
    words = {
        "python -c pass": ["-c", "pass"],
        "import torch": ["-c", "import os, torch; os._exit(0)"],
        "hsfl --help": ["-m", "hsfl", "--help"],
        "bare loop": ["-c", BARE],
        "run, even": ["-c", RUN, "run", *settings, *even, "--out"],
        "run, planned": ["-c", RUN, "run", *settings, "--out"],
    }
    assert tuple(words) == KINDS
    return {
        kind: [sys.executable, *given, *([str(scratch)] if given[-1] == "--out" else [])]
        for kind, given in words.items()
    }


def took_s(command: list[str], folder: Path) -> float:
    """Wall seconds of a process. folder: of its run, one that nobody has used."""
    words = [str(folder) if word == str(folder.parent) else word for word in command]
    began = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def measured(repeats: int) -> dict[str, list[float]]:
    """Seconds of each kind of process, in each repeat. The first turn, which fills the caches of files and of numba, counts nothing."""
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as name:
        for repeat in range(-1, repeats):
            for kind, command in commands(Path(name)).items():
                spent_s = took_s(command, Path(name) / f"{kind} {repeat}")
                if repeat >= 0:
                    seconds[kind].append(spent_s)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=11)
    arguments = parser.parse_args()
    seconds = measured(1 if arguments.quick else arguments.repeats)
    for kind in KINDS:
        ratios = [[own / other for own, other in zip(seconds[kind], seconds[base])] for base in KINDS[:2]]
        over = " and ".join(
            f"{statistics.median(by):.2f} times {base!r}" for by, base in zip(ratios, KINDS) if kind != base
        )
        print(f"{kind:16} {spread_of(seconds[kind])} s, {over}")
    later = {
        kind: [own - bare for own, bare in zip(seconds[kind], seconds["bare loop"])] for kind in KINDS if "run" in kind
    }
    print(f"first batch after the bare loop's, planned: {spread_of(later['run, planned'])} s")
    verdict("seconds of hsfl --help", statistics.median(seconds["hsfl --help"]), at_most=0.3)
    verdict(
        "seconds from the bare loop's first batch to that of a run", statistics.median(later["run, even"]), at_most=1.0
    )


if __name__ == "__main__":
    main()
