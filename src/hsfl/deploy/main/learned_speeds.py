"""What the main server learns of speeds from a measured round: of a client and its links, and of itself.

Every speed goes half of the way to what its phase took, in the geometric mean, so that the next round is modelled as the last ones were
measured. A device's units keep their proportions, and the delay of a message stays as it was probed, unless a phase was shorter.

Legend: C cuts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hsfl.deploy.wire.client_messages import OwnSpeeds
from hsfl.deploy.wire.message_fields import HIGHEST_RATE, LOWEST_RATE
from hsfl.models.cost_table import CostTable
from hsfl.network.latency import UnitWork, client_work
from hsfl.network.round_end import SWAP_MESSAGES, RoundEnd
from hsfl.planning.coded_cost import Coding, timed_coding
from hsfl.training.speed import Speed

BLEND = 0.5  # the weight of a new measurement against what is known
MOST_DELAY = 0.5  # of the seconds of a phase: what was probed once may have been longer than usual
LEAST_S = 1e-6  # that a part of the end of a round takes
MOVED = (  # rates, with their phases, what is sent, and whether every step sends a message
    ("main_up_bps", "smashed", "up", True),
    ("main_down_bps", "gradient", "down", True),
    ("edge_up_bps", "model_up", "head_up", False),
    ("edge_down_bps", "model_down", "head_down", False),
)


def work_of_client(speeds: OwnSpeeds, cost: CostTable, batch_size: int) -> UnitWork:
    """The work of a client's units before each cut, [C], as it measured them; by their FLOPs where it did not, or not each unit."""
    if not len(speeds.unit_forward_s) == len(speeds.unit_backward_s) == cost.num_units:
        return client_work(cost, None)
    sample_flops_per_s = speeds.flops_per_s / batch_size
    step_s = float(cost.client_flops[-1]) / sample_flops_per_s  # as the client measured its speed
    return UnitWork.before_cuts(speeds.unit_forward_s, speeds.unit_backward_s, sample_flops_per_s, step_s)


def coding_of_client(speeds: OwnSpeeds) -> Coding:
    """FLOPs of encoding and decoding a number at the client's speed, by codec, as far as it timed them."""
    return timed_coding(dict(zip(speeds.codecs, zip(speeds.encode_s, speeds.decode_s))), speeds.flops_per_s)


def work_of_main(speed: Speed) -> UnitWork:
    """The work of the main server's units after each cut, [C]."""
    return UnitWork.after_cuts(speed.unit_forward_s, speed.unit_backward_s, speed.flops_per_s / speed.batch_size)


def exchange_s(speeds: OwnSpeeds, up_bytes: float, down_bytes: float, num_steps: int) -> tuple[float, float]:
    """Modelled seconds on the link to the main server, up and down."""
    delays_s = num_steps * speeds.delay_s
    up_s, down_s = 8 * up_bytes / speeds.main_up_bps, 8 * down_bytes / speeds.main_down_bps
    return up_s + delays_s * (up_bytes > 0), down_s + delays_s * (down_bytes > 0)


def learned(
    speeds: OwnSpeeds,
    sample_flops: float,
    num_samples: float,
    num_steps: int,
    phases: Mapping[str, float],
    sent: Mapping[str, int],
) -> OwnSpeeds:
    """A client's speeds after a round. sample_flops: the work of its units for a sample. phases: measured seconds. sent: bytes of smashed
    data (`up`), of gradients (`down`) and of the head (`head_up`, `head_down`). Seconds may be anything that a client claims."""
    better: dict[str, Any] = {}
    if sample_flops * num_samples > 0 and phases["client"] > 0:
        better["flops_per_s"] = blended(speeds.flops_per_s, sample_flops * num_samples / phases["client"])
    moved = [
        (name, 8 * sent[load], num_steps if each_step else 1, phases[phase])
        for name, phase, load, each_step in MOVED
        if sent[load] > 0 and phases[phase] > 0
    ]
    delay_s = min([speeds.delay_s, *(MOST_DELAY * moved_s / messages for _, _, messages, moved_s in moved if messages)])
    for name, bits, messages, moved_s in moved:
        better[name] = blended(getattr(speeds, name), bits / (moved_s - messages * delay_s))
    better["delay_s"] = delay_s
    return replace(speeds, **better)


def learned_main(flops_per_s: float, work: UnitWork, trained: Sequence[tuple[int, float, float]]) -> float:
    """The main server's speed after a round. work: [C]. trained: for each client its cut, its samples, and the seconds in which they were
    served."""
    flops = sum(float(work.both[cut]) * num_samples for cut, num_samples, _ in trained)
    served_s = sum(seconds for _, _, seconds in trained)
    return blended(flops_per_s, flops / served_s) if flops > 0 and served_s > 0 else flops_per_s


def learned_end(end: RoundEnd, measured: Mapping[str, float], swapped_bits: float, num_clients: int) -> RoundEnd:
    """The end of a round after one. measured: seconds of each part that the round had. swapped_bits: of the common units, each way.
    num_clients: that were summed. What nobody knew is what was measured."""
    seconds = {f"{part}_s": part_s for part, part_s in measured.items() if part not in ("swap", "average")}
    if "average" in measured and num_clients:
        seconds["average_s"] = measured["average"] / num_clients
    better: dict[str, Any] = {name: _blended_s(getattr(end, name), value) for name, value in seconds.items()}
    swap_s = measured.get("swap", 0.0)
    if swapped_bits > 0 and swap_s > 0:
        delay_s = min(end.swap_delay_s, MOST_DELAY * swap_s / SWAP_MESSAGES)
        measured_bps = swapped_bits / (swap_s - SWAP_MESSAGES * delay_s)
        better |= {
            "swap_delay_s": delay_s,
            "swap_bps": measured_bps if end.swap_bps is None else blended(end.swap_bps, measured_bps),
        }
    return replace(end, **better)


def _blended_s(known_s: float, measured_s: float) -> float:
    """Between seconds that are known and those that were measured."""
    measured_s = max(measured_s, LEAST_S)
    return known_s ** (1 - BLEND) * measured_s**BLEND if known_s > 0 else measured_s


def blended(known: float, measured: float) -> float:
    """Between a speed that is known and one that was measured."""
    bounded = min(max(measured, LOWEST_RATE), HIGHEST_RATE)
    return known ** (1 - BLEND) * bounded**BLEND
