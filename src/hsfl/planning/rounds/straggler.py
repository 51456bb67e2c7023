"""What holds a client up, in numbers: its longest phase, how much the client sends or computes in it, and how fast."""

from typing import Any

import numpy as np

from hsfl.formats import rounded
from hsfl.models.cost_table import CostTable
from hsfl.network.clock import Why
from hsfl.planning.rounds.round_clock import RoundClock
from hsfl.planning.world import World

DIGITS = 6  # of the recorded numbers
HOLD_UP = ("client", "smashed", "server", "gradient", "model_up")  # phases that can hold a client up


def holding_up(world: World) -> tuple[str, ...]:
    """The phases that can hold a client up. Where the server is a queue nobody waits for the heads of others, so a client's own download is one."""
    return HOLD_UP if world.servers.service is None else ("model_down", *HOLD_UP)


def work_of(cost: CostTable, cut: int, num_samples: float) -> dict[str, float]:
    """FLOPs or bits of each phase for so many samples; a model is sent and received once."""
    per_sample = (cost.client_flops, cost.smashed_bits, cost.server_flops, cost.gradient_bits)
    work = {phase: float(num_samples * column[cut]) for phase, column in zip(HOLD_UP, per_sample)}
    return work | {"model_up": float(cost.model_bits[cut]), "model_down": float(cost.down_bits[cut])}


def longest_phase(client: int, seconds: dict[str, float], work: dict[str, float], work_s: dict[str, float]) -> Why:
    """The longest phase of a client. seconds: of each phase over the round that can hold it up. work, work_s: FLOPs or bits of each phase
    and the seconds that they take, of the round or of one mini-batch."""
    phase: Any = max(seconds, key=lambda name: seconds[name])
    own_s = sum(seconds.values())
    per_second = work[phase] / work_s[phase] if work_s[phase] > 0 else 0.0
    amount = per_second * seconds[phase] / (1 if phase in ("client", "server") else 8)
    return Why(client, phase, *(rounded(value, DIGITS) for value in (seconds[phase], own_s, amount, per_second)))


def explain_straggler(clock: RoundClock, round_index: int, chosen: tuple[int, ...]) -> Why | None:
    """What holds up the straggler of a round (0, 1, ...) in which the clients `chosen` are to take part; None if no client trains.

    Where all clients end together, the answer is about the client that takes longest apart from the server's work.
    """
    timeline, _ = clock.round(round_index, chosen)
    k = timeline.straggler
    if k < 0 or clock.method.pools_data:
        return None
    dealt, job = clock.dealt(round_index, chosen), clock.job
    cut = job.world.cost.num_units if clock.method.timing.cut == "whole" else int(job.cuts[k])
    work = work_of(job.world.cost, cut, float(np.broadcast_to(job.batch_size, job.cuts.shape)[k]))
    names = holding_up(job.world)
    work_s = {phase: float(getattr(dealt.allotted.phases, f"{phase}_s")[k]) for phase in names}
    if clock.method.timing.step == "free" and clock.method.timeline is None:
        # not as the timeline has it, which is cut off at tau: a dropped client counts with all its work
        batches = float(np.broadcast_to(dealt.job.num_batches, job.cuts.shape)[k])
        seconds = {name: once_s if name.startswith("model") else batches * once_s for name, once_s in work_s.items()}
    else:
        spent = {name: float(taken_s[k]) for name, taken_s in timeline.phase_s.items()}
        parts = {phase: (phase, f"{phase}_forward", f"{phase}_backward") for phase in names}
        seconds = {phase: sum(spent.get(name, 0.0) for name in parts[phase]) for phase in names}
    return longest_phase(k, seconds, work, work_s)
