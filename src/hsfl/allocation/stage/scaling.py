"""A stage in its own units: seconds, cycles, bits and watts in which the stage's numbers are near one.

Every unit is a power of two, so that a change of units costs no digit. What remains are ratios between clients, which the
solver has to live with.
"""

import math
from typing import NamedTuple

from hsfl.allocation.stage.fixed_shares import spend
from hsfl.allocation.stage.stage import Stage
from hsfl.allocation.stage.stage_answer import StageAnswer, StageSolver, StopWhen, TimeLimit


class Units(NamedTuple):
    """How much one of the stage's own units is, in seconds, hertz, bits per second and watts."""

    second_s: float
    hz: float
    bps: float
    watt_w: float


def own_units(stage: Stage) -> Units:
    """Units in which both budgets and a subchannel are about one, and the longest load of a client takes about a second."""
    bits = stage.up_bits + stage.edge_bits + stage.down_bits + stage.given_bits
    longest_s = float((stage.fixed_s + stage.cycles / stage.hz + bits / stage.subchannel_hz).max())
    return Units(_power_of_two(longest_s), *map(_power_of_two, (stage.hz, stage.subchannel_hz, stage.power_w)))


def _power_of_two(value: float) -> float:
    """The largest power of two up to a positive value, else 1."""
    return math.ldexp(1.0, math.frexp(value)[1] - 1) if value > 0.0 else 1.0


def in_units(stage: Stage, units: Units) -> Stage:
    """The stage's numbers in these units. The logarithms of starts stay, because only their differences count."""
    second_s, hz, bps, watt_w = units
    per_bit, per_cycle, per_watt = 1.0 / bps / second_s, 1.0 / hz / second_s, 1.0 / watt_w
    start_w = stage.start_w * per_watt
    same = stage.edge_start_w is stage.start_w
    return stage._replace(
        fixed_s=stage.fixed_s / second_s,
        up_bits=stage.up_bits * per_bit,
        edge_bits=stage.edge_bits * per_bit,
        up_power_w=stage.up_power_w * per_watt,
        cycles=stage.cycles * per_cycle,
        down_bits=stage.down_bits * per_bit,
        given_bits=stage.given_bits * per_bit,
        given_power_w=stage.given_power_w * per_watt,
        start_w=start_w,
        edge_start_w=start_w if same else stage.edge_start_w * per_watt,
        hz=stage.hz / hz,
        power_w=stage.power_w * per_watt,
        subchannel_hz=stage.subchannel_hz / bps,
    )


def solve_in_own_units(solve: StageSolver, stage: Stage, goal: StopWhen, clock: TimeLimit) -> StageAnswer:
    """A stage solver's answer, found in the stage's own units; it always says which cycles and powers are spent."""
    units = own_units(stage)
    second_s, hz, _, watt_w = units
    scaled = in_units(stage, units)
    tau_s = None if goal.tau_s is None else goal.tau_s / second_s
    answer = solve(scaled, StopWhen(goal.gap, goal.spare_s / second_s, tau_s), clock)
    server_hz, up_w, down_w, edge_w = answer.spent or spend(scaled, answer.share, answer.T_s, answer.rho)
    return StageAnswer(
        share=answer.share,
        T_s=answer.T_s * second_s,
        lower_bound_s=answer.lower_bound_s * second_s,
        rho=answer.rho * hz / watt_w,
        lam=answer.lam,
        spent=(server_hz * hz, up_w * watt_w, down_w * watt_w, edge_w * watt_w),
    )
