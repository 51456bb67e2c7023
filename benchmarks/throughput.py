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
from hsfl.data.datasets import Dataset
from hsfl.frameworks import find_framework
from hsfl.frameworks.base import Task
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
        for step, indices in enumerate(task.batches(k, round_index)):
            x, y = task.feed.batch(indices, k, round_index, step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            loss.item()
    return time.perf_counter() - started


def compare(task: Task, framework: str, repeats: int) -> None:
    algorithm = find_framework(framework)(task)
    state, everyone = algorithm.init(), list(range(task.num_clients))
    num_samples = sum(task.feed.num_samples(k) for k in everyone)
    ratios = []
    for repeat in range(-1, repeats):  # the first pair warms up
        bare = bare_s(task, task.model, max(repeat, 0))
        started = time.perf_counter()
        state, _ = algorithm.round(state, everyone, max(repeat, 0))
        ours = time.perf_counter() - started
        print(
            f"bare {num_samples / bare:8.1f}  {framework} {num_samples / ours:8.1f} samples/s  ratio {bare / ours:.3f}"
        )
        ratios += [bare / ours] * (repeat >= 0)
    low, high = min(ratios), max(ratios)
    print(f"{framework}: median ratio {statistics.median(ratios):.3f} (n = {len(ratios)}, {low:.3f} to {high:.3f})")


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
