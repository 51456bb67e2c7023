"""What codecs cost: encoding and decoding 4 MB on one thread beside a copy of it; and a round of split steps with `none` against a link
without codecs.

    python benchmarks/codecs.py            # four shapes, 200 turns; 60 pairs of rounds of the small CNN
    python benchmarks/codecs.py --quick    # a smoke run

In each turn everything is done once, one after another; medians, and the interval between the quartiles. The goal for int8, encode and
decode together, is 3 ms. Of the rounds the ratio of medians is told, with the 95 % interval of a bootstrap over pairs: with `none` nothing
may be slower, so that the interval includes 1 or lies below.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from hsfl.codec_table import CODECS, DOWN, UP, CodecChoice
from hsfl.config import parse_config
from hsfl.frameworks import find_framework
from hsfl.rng import stream
from hsfl.runs.prepare import prepare
from hsfl.training.codecs.link_codecs import make_codec
from hsfl.training.link import Link
from hsfl.training.speed import keep_freed_memory
from split_step import ratio

SHAPES = {  # 4 MB of float32 each
    "images": (64, 64, 16, 16),
    "small images": (256, 256, 4, 4),
    "sequences": (16, 1024, 64),
    "vectors": (4096, 256),
}
TURNS, PAIRS = 200, 60


def milliseconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began_s)


def time_codecs(shape: tuple[int, ...], turns: int) -> dict[str, np.ndarray]:
    """Milliseconds of each turn: of a copy, and of encoding and decoding together by each codec and direction."""
    tensor = torch.randn(shape)
    work: dict[str, Callable[[], object]] = {"memcpy": tensor.clone}
    for name, row in CODECS.items():
        codec = make_codec(CodecChoice(row, 0.0 if row.number is None else row.number.usual))
        assert codec is not None
        for direction in (UP, DOWN):
            draws = partial(stream, 0, "codec", direction, 0, 0, 0)

            def there_and_back(codec=codec, direction=direction, draws=draws) -> Tensor:  # type: ignore[no-untyped-def]
                return codec.decode(codec.encode(tensor, direction, draws), tensor.shape, tensor.dtype)

            work[f"{name} {direction}"] = there_and_back
    taken: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(turns + 2):
        for name, one in work.items():
            took = milliseconds(one)
            if turn >= 2:
                taken[name].append(took)
    return {name: np.array(column) for name, column in taken.items()}


class PlainLink(Link):
    """A link that knows no codecs: it counts and hands over."""

    def carry(self, route, load, key=None):  # type: ignore[no-untyped-def]
        self.count(route, load.nbytes if isinstance(load, Tensor) else load.num_bytes)
        return self.arrive(route, load)

    def carry_head(self, route, sent, trained, memory):  # type: ignore[no-untyped-def]
        return self.carry(route, trained)


def compare_rounds(pairs: int) -> np.ndarray:
    """Milliseconds [n, 2] of a round with a link without codecs, and with ours and `none`: many small batches, where a call counts most."""
    config = parse_config(
        {
            "model": {"name": "cnn", "input": [1, 8, 8], "norm": "none"},
            "data": {"name": "digits", "limit": 400, "limit_test": 10},
            "fleet": {"num_clients": 2, "cuts": [1, 2], "max_cut": 5},
            "train": {"batch_size": 4, "optimizer": "sgd"},
            "allocation": {"policy": "even"},
        }
    )
    bench = prepare(config)
    algorithm = find_framework("hsfl")(bench.task)
    state = algorithm.init()

    class PlainTask(type(bench.task)):  # type: ignore[misc]
        def link(self) -> Link:
            return PlainLink()

    plain = PlainTask(**vars(bench.task))
    taken = []
    for pair in range(pairs + 1):
        times = {}
        for which in ((plain, bench.task), (bench.task, plain))[pair % 2]:
            algorithm.task = which
            times[which is bench.task] = milliseconds(lambda: algorithm.round(state, [0, 1], 0))
        taken.append([times[False], times[True]])
    return np.array(taken[1:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every process that trains does
    torch.manual_seed(0)
    print(f"load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, one thread")
    for name, shape in SHAPES.items():
        times = time_codecs(
            tuple(max(1, side // 4) for side in shape) if chosen.quick else shape, 3 if chosen.quick else TURNS
        )
        for codec, column in times.items():
            low, middle, high = np.quantile(column, [0.25, 0.5, 0.75])
            print(f"{name} {shape}: {codec}: {middle:.2f} ms ({low:.2f} to {high:.2f}, n = {len(column)})")
    middle, low, high = ratio(compare_rounds(4 if chosen.quick else PAIRS))
    print(f"a round with none against a link without codecs: {middle:.3f} (95 %: {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
