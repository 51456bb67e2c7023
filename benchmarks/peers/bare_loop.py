"""A bare PyTorch loop that waits beside a peer: it makes a round when it is told to, and sleeps otherwise.

Started by `paired_rounds.Bare` in the peer's environment. It reads lines `MEMORY_FORMAT` and answers each with a line when the round is
over. One model and one fused SGD over the batches of the clients of a round: no copies, no sums, no optimiser that begins anew.
Where two such loops run side by side, each has every second client.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from shared_work import FORMATS, WORKS, batches_of, make_model, read_tensors, train_batches
from torch import Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("shared", type=Path)
    parser.add_argument("part", type=int, help="0, 1, ...: which of the loops this is")
    parser.add_argument("parts", type=int, help="how many loops run side by side")
    words = parser.parse_args()
    torch.set_num_threads(1)
    work = WORKS[words.work]
    models = {name: make_model(work, words.shared, name) for name in FORMATS}
    data = {name: read_tensors(work, words.shared, name) for name in FORMATS}

    def batches(memory_format: str) -> Iterator[tuple[Tensor, Tensor]]:
        for client in work.clients_of(0)[words.part :: words.parts]:
            yield from batches_of(work, *data[memory_format], client)

    print("ready", flush=True)
    for line in sys.stdin:
        train_batches(models[line.strip()], work.lr, batches(line.strip()))
        print("done", flush=True)


if __name__ == "__main__":
    main()
