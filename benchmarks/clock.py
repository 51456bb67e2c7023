"""The clock's two speed figures, each the median of interleaved repeats.

    python benchmarks/clock.py [--quick] [--repeats N]

1. A round's rates and timeline, 10,000 clients x 100 subchannels, draws apart: about 100 ms wanted.
2. Round latency over 1,000 samples of the channel x 10 clients x 10 subchannels, under the even allocation (each
   client owns one subchannel), as a multiple of the bare np.log2 it needs (four links): 3 at most. And Eq. (7) with
   explicit powers on all 100 pairs, as the optimiser uses it, against the np.log2 of these.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from hsfl.framework_table import METHODS
from hsfl.models.cost_table import CostTable
from hsfl.network.channel import Ofdma, draw_round, draw_rounds
from hsfl.network.clock import timeline
from hsfl.network.devices import Servers, draw_fleet
from hsfl.network.even_allocation import even_phases
from hsfl.network.latency import rate_bps, round_s
from hsfl.rng import stream

UNITS = 10
DEPTH = np.arange(UNITS + 1.0)
COST = CostTable(  # as deep as ResNet-18; the numbers do not matter for speed
    client_forward_flops=1e8 * DEPTH,
    client_backward_flops=2e8 * DEPTH,
    server_forward_flops=1e8 * (UNITS - DEPTH),
    server_backward_flops=2e8 * (UNITS - DEPTH),
    smashed_bits=np.where(DEPTH < UNITS, 5e5, 0),
    gradient_bits=np.where((DEPTH > 0) & (DEPTH < UNITS), 5e5, 0),
    model_bits=3e7 * DEPTH,
)


def medians_ms(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Each thing's median, the things taken in turn so that the machine's moods hit all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):  # the first warms up
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * float(np.median(values[1:])) for name, values in seconds.items()}


def one_round(num_clients: int, num_subchannels: int, repeats: int) -> None:
    fleet, links = draw_fleet(num_clients, stream(0, "fleet"), num_units=UNITS), Ofdma(num_subchannels=num_subchannels)
    drawn, servers = draw_round(fleet, links, 0, 0), Servers()
    num_batches = stream(0, "batches").integers(1, 50, num_clients) + 0.5
    clusters = np.arange(num_clients) // 100

    def run(name: str) -> Callable[[], object]:
        batches = 20.5 if name == "psl" else num_batches

        def once() -> object:
            phases = even_phases(name, COST, fleet.max_cut, 32, fleet, servers, links, drawn, clusters=clusters)
            return timeline(name, phases, batches, clusters=clusters)

        return once

    print(f"rates and timeline of a round, {num_clients} clients x {num_subchannels} subchannels, ms:")
    for name, ms in medians_ms({name: run(name) for name in METHODS}, repeats).items():
        print(f"  {name:<14}{ms:8.1f}")


def many_samples(num_samples: int, repeats: int) -> None:
    fleet, links, servers = draw_fleet(10, stream(0, "fleet"), num_units=UNITS), Ofdma(), Servers()
    drawn = draw_rounds(fleet, links, 0, range(num_samples))
    needed = [1 + drawn.main_gain[:, :, i % 10].copy() for i in range(4)]  # four links, one subchannel per client
    power = np.full((10, 10), 0.5)
    runs: dict[str, Callable[[], object]] = {
        "latency": lambda: round_s(
            even_phases("hsfl", COST, fleet.max_cut, 32, fleet, servers, links, drawn), num_batches=5.5
        ),
        "its log2": lambda: [np.log2(snr) for snr in needed],
        "Eq. (7)": lambda: rate_bps(power, drawn.main_gain, 1e6, 1e-3),
        "its log2 ": lambda: np.log2(drawn.main_gain),
    }
    ms = medians_ms(runs, 40 * repeats)
    print(f"{num_samples} samples x 10 clients x 10 subchannels, multiples of the bare np.log2:")
    print(f"  latency, even allocation   {ms['latency'] / ms['its log2']:.2f}  ({ms['latency']:.3f} ms)")
    print(f"  Eq. (7), explicit powers   {ms['Eq. (7)'] / ms['its log2 ']:.2f}  ({ms['Eq. (7)']:.3f} ms)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.quick:
        one_round(500, 20, 1)
        many_samples(50, 1)
    else:
        one_round(10_000, 100, arguments.repeats)
        many_samples(1000, arguments.repeats)


if __name__ == "__main__":
    main()
