"""Two one-thread workers against two bare one-thread processes on the same work, and how much later the first round begins.

    python benchmarks/engines.py                  # 500 small clients of 20 samples, 50 a round, and ResNet-18 at batch 32
    python benchmarks/engines.py --ray            # Ray beside `workers` and the bare processes; its start-up is reported apart
    python benchmarks/engines.py --quick

A bare process trains half of a round's clients, the same every round, with one model and one fused Adam: no copies, no sums, no
optimiser that begins anew. The bare rate is the sum of both processes' median rates while both run. Rates are samples per second of
whole rounds; ours is the median round of a run without its first. Runs are interleaved, and a ratio is the median of the pairs. Start-up:
seconds from the start of a run to its first batch, beside the same of `inline`, with Python and torch loaded.

Wanted: 0.97 of two bare processes, and so more than pfl's two processes (0.92: one takes 1.09 times a bare loop's time on the
small clients, docs/log.md); the first batch at most 2.5 s later than inline; Ray at least 0.95 of `workers`. Ray opens ports: run it
where nobody else reaches them, as root: ip netns add NAME; ip netns exec NAME ip link set lo up; ip netns exec NAME python ...
"""

import argparse
import multiprocessing as mp
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hsfl.config import RunConfig, with_changes
from hsfl.runs.loop import run
from hsfl.runs.observer import Observer
from hsfl.runs.prepare import prepare
from throughput import bare_s, images, spread_of, verdict


@dataclass(frozen=True)
class Work:
    """What is trained."""

    model: str
    num_clients: int
    per_round: int
    num_samples: int  # of each client
    batch_size: int
    shape: tuple[int, int, int]


SMALL = Work("cnn", 500, 50, 20, 10, (1, 28, 28))
RESNET = Work("resnet18", 10, 10, 64, 32, (3, 32, 32))
QUICK = Work("cnn", 6, 4, 20, 10, (1, 28, 28))


def config_of(work: Work, rounds: int) -> RunConfig:
    depth = 8 if work.model == "resnet18" else 4
    cuts = [1 + k % depth for k in range(work.num_clients)]
    words = [
        f"model.name={work.model}", f"fleet.num_clients={work.num_clients}", f"fleet.cuts={cuts}", "data.partition=iid",
        f"train.clients_per_round={work.per_round}", f"train.batch_size={work.batch_size}", f"train.rounds={rounds}",
        f"train.eval_every={rounds + 1}", f"log.checkpoint_every={rounds}",
    ]  # fmt: skip
    return with_changes(RunConfig(), words)


class Watch(Observer):
    """Notes when the first batch began and how long rounds took."""

    def __init__(self) -> None:
        self.began, self.first, self.rates = time.perf_counter(), None, list[float]()

    def batch_starts(self, client: int, num_samples: int) -> None:
        self.first = self.first or time.perf_counter() - self.began

    def round_ends(self, record: Any) -> None:
        self.rates.append(record.num_samples / record.wall_s)


def ours(work: Work, rounds: int, *engine: str) -> Watch:
    watch = Watch()
    data = images(work.num_clients * work.num_samples, work.shape)
    with tempfile.TemporaryDirectory() as folder:
        run(with_changes(config_of(work, rounds), engine), Path(folder) / "run", observer=watch, dataset=data)
    return watch


def bare_process(work: Work, rounds: int, ready: Any, begin: Any, answer: Any) -> None:
    torch.set_num_threads(1)
    mine = Work(work.model, work.per_round // 2, work.per_round // 2, work.num_samples, work.batch_size, work.shape)
    task = prepare(config_of(mine, 1), images(mine.num_clients * work.num_samples, work.shape)).task
    bare_s(task, task.model, 0)
    ready.release()
    begin.wait()
    answer.put(statistics.median(bare_s(task, task.model, index) for index in range(rounds)))


def bare_rate(work: Work, rounds: int) -> float:
    """Samples per second of two processes together."""
    fresh = mp.get_context("spawn")
    ready, begin, answer = fresh.Semaphore(0), fresh.Event(), fresh.Queue()
    processes = [fresh.Process(target=bare_process, args=(work, rounds, ready, begin, answer)) for _ in range(2)]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    begin.set()
    seconds = [answer.get() for _ in processes]
    for process in processes:
        process.join()
    return sum((work.per_round // 2) * work.num_samples / each for each in seconds)


def measure(work: Work, engines: tuple[str, ...], repeats: int, rounds: int) -> None:
    """All engines beside the bare processes, in turns, and whether they are as fast as wanted."""
    ratios: dict[str, list[float]] = {name: [] for name in engines}
    later: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(repeats):
        bare, inline = bare_rate(work, rounds), ours(work, 1)
        for name in engines:
            spread = ours(work, rounds, f"engine.name={name}", "engine.workers=2", "engine.threads=1")
            rate = statistics.median(spread.rates[1:])  # the first round warms up
            ratios[name].append(rate / bare)
            later[name].append(spread.first - inline.first)
            print(f"{work.model}: bare {bare:.0f}, {name} {rate:.0f} samples/s, ratio {ratios[name][-1]:.3f}; "
                  f"first batch {later[name][-1]:+.2f} s later than inline", flush=True)  # fmt: skip
    for name in engines:
        print(f"{work.model}, {name}: ratio {spread_of(ratios[name])}; first batch later by {spread_of(later[name])} s")
    verdict(f"{work.model}: workers over two bare processes", statistics.median(ratios["workers"]), at_least=0.97)
    verdict(f"{work.model}: seconds that workers begin later", statistics.median(later["workers"]), at_most=2.5)
    if "ray" in engines:
        beside = [ray / mine for ray, mine in zip(ratios["ray"], ratios["workers"])]
        print(f"{work.model}, ray over workers: {spread_of(beside)}")
        verdict(f"{work.model}: Ray over workers", statistics.median(beside), at_least=0.95)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ray", action="store_true", help="measure Ray, too")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=8)
    words = parser.parse_args()
    torch.set_num_threads(1)
    repeats, rounds = (1, 2) if words.quick else (words.repeats, words.rounds)
    for work in (QUICK,) if words.quick else (SMALL, RESNET):
        measure(work, ("workers", "ray") if words.ray else ("workers",), repeats, rounds)


if __name__ == "__main__":
    main()
