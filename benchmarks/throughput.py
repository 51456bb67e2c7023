"""Samples per second of an HSFL round against a bare PyTorch loop over the same batches on one model.

    python benchmarks/throughput.py            # ResNet-18, 32x32, batch 256, ten clients of 8 batches, mixed cuts
    python benchmarks/throughput.py --quick    # a smoke run

Both train with the same (fused) optimiser; runs are interleaved and the ratio is the median of the pairs.
"""

import argparse
import statistics
import time

import numpy as np
import torch
import torch.nn.functional as F

from hsfl.config import parse_config
from hsfl.data.registry import Dataset
from hsfl.frameworks import find_framework
from hsfl.frameworks.framework import Task
from hsfl.models.units import SplitModel
from hsfl.runs.prepare import prepare


def images(num_samples: int, shape: tuple[int, int, int]) -> Dataset:
    """Random images: speed does not depend on what they show."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (num_samples, *shape), dtype=np.uint8)
    y = rng.integers(0, 10, num_samples)
    classes = tuple("0123456789")
    return Dataset("random", x, y, x[:2], y[:2], classes, (0.5,) * shape[0], (0.25,) * shape[0])


def make_task(
    model: str, num_clients: int, num_batches: int, batch_size: int, size: int, framework: str = "hsfl"
) -> Task:
    cuts = [3 + k % 8 for k in range(num_clients)] if model == "resnet18" else [1 + k % 5 for k in range(num_clients)]
    config = parse_config(
        {
            "framework": framework,
            "model": {"name": model},
            "fleet": {"num_clients": num_clients, "cuts": cuts},
            "train": {"batch_size": batch_size},
        }
    )
    channels = 3 if model == "resnet18" else 1
    return prepare(config, images(num_clients * num_batches * batch_size, (channels, size, size))).task


def bare_s(task: Task, model: SplitModel, round_index: int) -> float:
    """One model, one optimiser, the same batches."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=task.config.train.lr, fused=True)
    started = time.perf_counter()
    for k in range(task.num_clients):
        for x, y, _ in task.data(k).batches(round_index):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            loss.item()
    return time.perf_counter() - started


def compare(task: Task, framework: str, repeats: int) -> list[float]:
    """The bare loop's seconds over ours, of each pair. Every second pair begins with ours, so that a machine that drifts favours nobody."""
    algorithm = find_framework(framework)(task)
    state, everyone = algorithm.init(), list(range(task.num_clients))
    num_samples = sum(task.feed.num_samples(k) for k in everyone)
    ratios, cpu_ratios = [], []

    def bare(round_index: int) -> tuple[float, float]:
        began = time.process_time()
        return bare_s(task, task.model, round_index), time.process_time() - began

    def ours(round_index: int) -> tuple[float, float]:
        nonlocal state
        began, spent = time.perf_counter(), time.process_time()
        state, _ = algorithm.round(state, everyone, round_index)
        return time.perf_counter() - began, time.process_time() - spent

    for repeat in range(-1, repeats):  # the first pair warms up
        order = (bare, ours) if repeat % 2 else (ours, bare)
        took = {each.__name__: each(max(repeat, 0)) for each in order}
        (bare_wall_s, bare_cpu_s), (our_wall_s, our_cpu_s) = took["bare"], took["ours"]
        rates = f"bare {num_samples / bare_wall_s:8.1f}  {framework} {num_samples / our_wall_s:8.1f} samples/s"
        print(f"{rates}  ratio {bare_wall_s / our_wall_s:.3f}, by time of the processor {bare_cpu_s / our_cpu_s:.3f}")
        if repeat >= 0:
            ratios.append(bare_wall_s / our_wall_s)
            cpu_ratios.append(bare_cpu_s / our_cpu_s)
    print(f"{framework}: median ratio {spread_of(ratios)}; by time of the processor {spread_of(cpu_ratios)}")
    return ratios


def spread_of(values: list[float]) -> str:
    """The median, with n and the range."""
    return f"{statistics.median(values):.3f} (n = {len(values)}, {min(values):.3f} to {max(values):.3f})"


def verdict(what: str, value: float, at_most: float | None = None, at_least: float | None = None) -> None:
    """One line that says whether a number is as wanted."""
    holds = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
    wanted = f"at most {at_most:g}" if at_most is not None else f"at least {at_least:g}"
    print(f"VERDICT {'holds' if holds else 'FAILS'}: {what} {value:.4g}, wanted {wanted}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--framework", default="hsfl")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.quick:
        compare(make_task("cnn", 3, 2, 16, 16), arguments.framework, 1)
    else:
        compare(make_task("resnet18", 10, 8, 256, 32), arguments.framework, arguments.repeats)


if __name__ == "__main__":
    main()
