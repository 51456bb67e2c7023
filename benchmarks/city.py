"""A city: 100,000 clients in 100 cells of 10 subchannels, 10,000 chosen a round, ResNet-18. Seconds of each step, and peak memory.

    python benchmarks/city.py [--quick] [--repeats 3] [--clients K] [--cells N] [--chosen n] [--gap 0.02]

Wanted on two cores: fleet, cuts over sampled participants and one round's allocation with a proven gap of at most 2 % in 60 s and 2 GB.
The bound is for the planned cuts: no allocation with them beats it, other cuts might. All seconds are of round 0, the even ones, too;
the clock of a round (everything but the allocation: draw, even phases, timeline) in 0.5 s. Compilation is not counted.
"""

import argparse
import resource
import statistics
import time

import numpy as np

from hsfl.config import RunConfig, parse_config
from hsfl.models.cost_table import CostTable
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.rounds.round_clock import RoundClock
from hsfl.planning.world import world_of
from hsfl.rng import stream

MACS = np.array([2.41e6, 4.72e6, 4.72e6, 3.67e6, 4.72e6, 3.67e6, 4.72e6, 3.67e6, 4.72e6, 5.1e3])
PARAMETERS = np.array([9.5e3, 74e3, 74e3, 230e3, 295e3, 919e3, 1.18e6, 3.67e6, 4.72e6, 5.1e3])
VALUES = np.array([3072, 4096, 4096, 4096, 2048, 2048, 1024, 1024, 512, 512, 0])


def resnet18() -> CostTable:
    """The costs of ResNet-18 on 32 x 32 images, counted by hand, so that the benchmark needs no torch."""
    depth = np.concatenate([[0.0], np.cumsum(2 * MACS)])
    bits = 32.0 * VALUES
    return CostTable(
        client_forward_flops=depth,
        client_backward_flops=2 * depth,
        server_forward_flops=depth[-1] - depth,
        server_backward_flops=2 * (depth[-1] - depth),
        smashed_bits=bits,
        gradient_bits=np.where(np.arange(11) > 0, bits, 0.0),
        model_bits=np.concatenate([[0.0], np.cumsum(32 * PARAMETERS)]),
    )


def settings(clients: int, cells: int, chosen: int, policy: str, gap: float) -> RunConfig:
    return parse_config(
        {
            "fleet": {"num_clients": clients, "cuts": "planned"},
            "network": {"cells": cells, "main_hz": 1e10 * chosen},
            "train": {"clients_per_round": chosen, "batch_size": 32, "receivers": "chosen"},
            "allocation": {"policy": policy, "gap": gap, "time_limit_s": 60.0},
        }
    )


def verdict(what: str, value: float, at_most: float) -> None:
    """As in `throughput`, which needs torch."""
    print(f"VERDICT {'holds' if value <= at_most else 'FAILS'}: {what} {value:.4g}, wanted at most {at_most:.4g}")


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def compile_all() -> None:
    """Compile, or load, what the city needs."""
    city(settings(120, 3, 60, "proposed", 0.02), quiet=True)


def city(config: RunConfig, quiet: bool = False) -> dict[str, float]:
    """Seconds of each step, and the proven gap of the first round, for the planned cuts."""
    from hsfl.planning.cuts import choose_cuts  # here, because numba takes seconds to load

    seconds, began, spent = {}, time.perf_counter(), time.process_time()

    def step(name: str) -> None:
        nonlocal began, spent
        now, cpu = time.perf_counter(), time.process_time()
        seconds[name], cpu_s, began, spent = now - began, cpu - spent, now, cpu
        if not quiet:
            print(
                f"  {name:<28}{seconds[name]:8.2f} s   of the processor {cpu_s:6.2f} s   peak {peak_mb():6.0f} MB",
                flush=True,
            )

    num_samples = stream(0, "samples").integers(50, 500, config.fleet.num_clients).astype(float)
    world = world_of(config, resnet18())
    step("fleet and cells")
    cuts, _ = choose_cuts(CutTask.of_run(config, world, num_samples))
    step("cuts over participants")
    clock = RoundClock(config, world, cuts, num_samples)
    chosen = clock.chosen(0)
    step("who takes part")
    line, says = clock.round(0, chosen)
    step("one round, allocated")
    even = config.model_copy(update={"allocation": config.allocation.model_copy(update={"policy": "even"})})
    pace = RoundClock(even, world, cuts, num_samples)
    even_line, _ = pace.round(0, chosen)
    step("the clock of a round, first")
    pace.round(1, pace.chosen(1))
    step("the clock of a round")
    if not quiet:
        print(f"  cuts chosen: {dict(zip(*np.unique(np.array(cuts), return_counts=True)))}")
        print(
            f"  round 0 with these cuts: allocated {line.round_s:.4g} s, no allocation below {says['lower_bound_s']:.4g} s, "
            f"gap {says['gap']:.2%}, {says['status']}; even {even_line.round_s:.4g} s"
        )
    return seconds | {"gap": says["gap"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--chosen", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gap", type=float, default=0.02)
    arguments = parser.parse_args()
    sizes = (arguments.clients, arguments.cells, arguments.chosen) if not arguments.quick else (3000, 5, 100)
    compile_all()
    totals, clocks, gaps = [], [], []
    for _ in range(1 if arguments.quick else arguments.repeats):
        print("{} clients in {} cells, {} a round, proven to {:.1%}:".format(*sizes, arguments.gap))
        seconds = city(settings(*sizes, "proposed", arguments.gap))
        clocks.append(seconds.pop("the clock of a round"))
        gaps.append(seconds.pop("gap"))
        totals.append(sum(seconds.values()))
        print(f"  in all {totals[-1]:.1f} s, peak {peak_mb():.0f} MB, gap {gaps[-1]:.2%}")
    n = f"(median of {len(totals)}, {min(totals):.1f} to {max(totals):.1f})"
    verdict(f"seconds of fleet, cuts and one round {n}", statistics.median(totals), at_most=60)
    verdict("MB at the peak", peak_mb(), at_most=2048)
    verdict("largest proven gap, for the planned cuts,", max(gaps), at_most=arguments.gap * (1 + 1e-6))
    verdict(f"seconds of the clock of a round (median of {len(clocks)})", statistics.median(clocks), at_most=0.5)


if __name__ == "__main__":
    main()
