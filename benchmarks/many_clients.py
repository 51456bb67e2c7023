"""500 clients with the small CNN on MNIST-sized images, 20 samples each, batch 10, against a bare loop of the same steps.

python benchmarks/many_clients.py [--quick]
"""

import argparse

import torch

from throughput import compare, make_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--framework", default="hsfl")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    num_clients = 5 if arguments.quick else 500
    repeats = 1 if arguments.quick else arguments.repeats
    compare(make_task("cnn", num_clients, 2, 10, 28), arguments.framework, repeats)


if __name__ == "__main__":
    main()
