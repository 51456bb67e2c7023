"""How seconds and memory grow with the fleet: 10 to 100,000 clients, 100 of them a round, each step on its own.

    python benchmarks/growth.py [--quick] [--repeats 3] [--json growth.json] [--figure docs/figures/growth.png]

Steps: draw the fleet and plan cuts (cells of up to 1,000 clients, so that all sizes are planned in one way); allocate one round, proven
to 2 %; the clock of a round under the even allocation; training (small CNN, 28x28, 20 samples a client, batch 10); the record
of the round and of the clients. Every size has a process of its own. Seconds are those of the processor: a busy machine changes them
little. Peaks are of the whole process while the step runs.
"""

import argparse
import contextlib
import json
import multiprocessing
import resource
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

SIZES = (10, 100, 1000, 10_000, 100_000)
STEPS = ("draw and plan", "allocate", "clock", "training", "record")
MOST_SAMPLES = 60_000  # as many as MNIST has; more clients than these suffice for draw theirs with replacement


def settings(num_clients: int, policy: str) -> Any:
    from hsfl.config import parse_config

    return parse_config(
        {
            "model": {"name": "cnn"},
            "data": {"partition": "iid", "min_samples": 20},
            "fleet": {"num_clients": num_clients, "cuts": "planned"},
            "network": {"cells": max(2, num_clients // 1000)},
            "train": {"clients_per_round": min(100, num_clients), "batch_size": 10, "receivers": "chosen"},
            "allocation": {"policy": policy, "gap": 0.02},
        }
    )


class Meter:
    """Seconds of the processor and the peak of memory of one step after another."""

    def __init__(self) -> None:
        self.steps: dict[str, dict[str, float]] = {}
        self.begin()

    def begin(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # Linux counts the peak anew
        self.cpu_s, self.wall_s = time.process_time(), time.perf_counter()

    def end(self, step: str) -> None:
        cpu_s, wall_s = time.process_time() - self.cpu_s, time.perf_counter() - self.wall_s
        self.steps[step] = {"cpu_s": cpu_s, "wall_s": wall_s, "peak_mb": _peak_mb()}
        self.begin()


def _peak_mb() -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(num_clients: int) -> dict[str, Any]:
    """All steps of one size, in a process of their own."""
    import torch

    from hsfl.frameworks import find_framework
    from hsfl.planning.cuts import choose_cuts
    from hsfl.planning.rounds.participation import CutTask
    from hsfl.planning.rounds.round_clock import RoundClock
    from hsfl.planning.world import make_world
    from hsfl.runs.prepare import prepare
    from hsfl.runs.run_folder.folder import record_line
    from hsfl.runs.run_folder.write_records import clients_record, make_round_record
    from throughput import images

    torch.set_num_threads(1)
    config, even = settings(num_clients, "proposed"), settings(num_clients, "even")
    _warm_up()
    data = images(min(20 * num_clients, MOST_SAMPLES), (1, 28, 28))
    make_world(config, (1, 28, 28), 10)  # the costs of the model are measured once and remembered
    bench = prepare(even, data)
    meter = Meter()
    world = make_world(config, (1, 28, 28), 10)
    cuts, _ = choose_cuts(CutTask.of_run(config, world, bench.num_samples))
    meter.end("draw and plan")
    clock = RoundClock(config, world, cuts, bench.num_samples)
    _, says = clock.round(0, clock.chosen(0))
    meter.end("allocate")
    framework = find_framework("hsfl")(bench.task)
    pace = RoundClock(even, world, framework.cuts, bench.num_samples)
    pace.round(0, pace.chosen(0))  # the first round also finds out who shares which band
    meter.begin()
    line, _ = pace.round(1, pace.chosen(1))
    meter.end("clock")
    state = framework.init()
    kept = [k for k in pace.chosen(1) if line.kept[k]]
    framework.round(state, kept[:2], 0)  # warms up
    meter.begin()
    _, result = framework.round(state, kept, 1)
    meter.end("training")
    record = make_round_record(framework, bench.task, 1, 0.0, line, says, result, None, 1.0)
    written = len(record_line(record)), len(json.dumps(asdict(clients_record(bench, framework.cuts))))
    meter.end("record")
    return {
        "clients": num_clients,
        "gap": says["gap"],
        "record_bytes": written[0],
        "clients_bytes": written[1],
        "steps": meter.steps,
    }


def _warm_up() -> None:
    """Compile, or load, the solver."""
    import numpy as np

    from hsfl.allocation.cells import solve_cells
    from hsfl.allocation.random_scenarios import random_scenario

    for sharing, clients in (("bandwidth", 4), ("exclusive", 2)):
        cells = [random_scenario(np.random.default_rng(seed), clients, 3, sharing) for seed in range(2)]
        solve_cells(cells, [np.ones(clients, int)] * 2, 0.02, 10.0)


def median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One row from several of the same size: medians of seconds and memory, with their spread."""
    steps = {}
    for step in STEPS:
        each = {name: [row["steps"][step][name] for row in rows] for name in ("cpu_s", "wall_s", "peak_mb")}
        steps[step] = {name: statistics.median(values) for name, values in each.items()}
        steps[step]["spread_s"] = max(each["cpu_s"]) - min(each["cpu_s"])
    return rows[0] | {"steps": steps, "n": len(rows)}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: seconds and peak megabytes of each step."""
    head = ["clients", *STEPS, "a round's record", "clients.json"]
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---:" for _ in head) + " |"]
    for row in rows:
        cells = [f"{row['steps'][step]['cpu_s']:.3g} s, {row['steps'][step]['peak_mb']:.0f} MB" for step in STEPS]
        sizes = [f"{row[name] / 1e3:.1f} kB" for name in ("record_bytes", "clients_bytes")]
        lines.append("| " + " | ".join([f"{row['clients']:,}", *cells, *sizes]) + " |")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds and peak memory over clients, both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    seconds, memory = figure.subplots(1, 2)
    sizes = [row["clients"] for row in rows]
    for step, mark in zip(STEPS, "osD^v"):
        for axes, name in ((seconds, "cpu_s"), (memory, "peak_mb")):
            axes.loglog(sizes, [row["steps"][step][name] for row in rows], marker=mark, label=step)
    for axes, title in ((seconds, "seconds of the processor"), (memory, "peak memory in MB")):
        axes.set_xlabel("clients of the fleet, 100 of them a round")
        axes.set_title(title, loc="left", fontsize=10.5)
        axes.grid(True, which="major", alpha=0.3)
    memory.yaxis.set_minor_formatter("{x:.0f}")  # less than a decade: numbers as they are
    memory.legend(frameon=False, fontsize=8.5, loc="upper left")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    sizes, repeats = ((10, 3000), 1) if arguments.quick else (SIZES, arguments.repeats)
    rows = []
    for size in sizes:
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            rows.append(median([pool.apply(measure, (size,)) for _ in range(repeats)]))
        told = {step: round(row["cpu_s"], 4) for step, row in rows[-1]["steps"].items()}
        print(f"{size:,} clients (n = {repeats}): {told}, gap {rows[-1]['gap']:.2%}", flush=True)
    print(table(rows))
    worst = max(row["gap"] for row in rows)
    holds = worst <= 0.02 * (1 + 1e-6)
    print(f"VERDICT {'holds' if holds else 'FAILS'}: every round proven to {worst:.2%}, wanted at most 2 %")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    if arguments.figure:
        draw(rows, arguments.figure)


if __name__ == "__main__":
    main()
