"""One stage of a round as plain arrays for the compiled solvers.

Legend: K clients, I subchannels. A round has two stages that use nothing in common: training (with the model upload) and
model distribution. Both are the same problem with other numbers: c_k + n_k / f_k + d_k / R_k <= T under two budgets.
"""

from typing import NamedTuple

import numpy as np

from hsfl.allocation.numba_cache import compiled
from hsfl.allocation.scenario import Scenario

Array = np.ndarray


class Stage(NamedTuple):
    """The numbers of one stage; bits, cycles and seconds are totals over the stage (all N mini-batches).

    This file alone knows all fields: other files read them by name and make stages by the functions below.
    """

    fixed_s: Array  # [K] the client's own computation, N A
    up_bits: Array  # [K] smashed data, sent to the main server with the client's full power
    edge_bits: Array  # [K] model upload, sent to the edge server with the client's full power
    up_power_w: Array  # [K] the client's full power
    cycles: Array  # [K] n, work for the server
    down_bits: Array  # [K] d, received from the server, which divides `power_w` among its clients
    given_bits: Array  # [K] received with the power `given_power_w` (even power): then down_bits is 0
    given_power_w: Array  # [K]
    start_w: Array  # [K, I] noise / gain: the water level at which a subchannel starts to carry bits
    log_start: Array  # [K, I]
    order: Array  # [K, I] subchannels from the best
    edge_start_w: Array  # [K, I] the same three towards the edge server
    edge_log_start: Array  # [K, I]
    edge_order: Array  # [K, I]
    hz: float  # the server's budget of cycles per second
    power_w: float  # the server's budget of power
    subchannel_hz: float


class Starts(NamedTuple):
    """Where the subchannels of each client towards one server start to carry bits, [..., K, I] each."""

    start_w: Array  # noise / gain
    log_start: Array
    order: Array  # subchannels from the best


def starts_of(start_w: Array) -> Starts:
    """noise / gain [..., K, I], with its logarithm and its order."""
    return Starts(start_w, np.log(start_w), np.argsort(start_w, axis=-1, kind="stable"))


def _make_stage(
    fixed_s: Array,
    up_bits: Array,
    edge_bits: Array,
    up_power_w: Array,
    cycles: Array,
    down_bits: Array,
    main: Starts,
    edge: Starts,
    hz: float,
    power_w: float,
    subchannel_hz: float,
) -> Stage:
    """A stage without downlinks of given power. `main` are the starts towards the server that also sends."""
    none = np.zeros(len(fixed_s))
    return Stage(
        fixed_s=fixed_s,
        up_bits=up_bits,
        edge_bits=edge_bits,
        up_power_w=up_power_w,
        cycles=cycles,
        down_bits=down_bits,
        given_bits=none,
        given_power_w=none,
        start_w=main.start_w,
        log_start=main.log_start,
        order=main.order,
        edge_start_w=edge.start_w,
        edge_log_start=edge.log_start,
        edge_order=edge.order,
        hz=hz,
        power_w=power_w,
        subchannel_hz=subchannel_hz,
    )


make_stage_compiled = compiled(_make_stage)


@compiled
def with_cycles(stage: Stage, cycles: Array) -> Stage:
    """The stage with other server work [K]; compiled code has no `_replace`."""
    return Stage(
        fixed_s=stage.fixed_s,
        up_bits=stage.up_bits,
        edge_bits=stage.edge_bits,
        up_power_w=stage.up_power_w,
        cycles=cycles,
        down_bits=stage.down_bits,
        given_bits=stage.given_bits,
        given_power_w=stage.given_power_w,
        start_w=stage.start_w,
        log_start=stage.log_start,
        order=stage.order,
        edge_start_w=stage.edge_start_w,
        edge_log_start=stage.edge_log_start,
        edge_order=stage.edge_order,
        hz=stage.hz,
        power_w=stage.power_w,
        subchannel_hz=stage.subchannel_hz,
    )


@compiled
def needs_subchannel(stage: Stage, k: int) -> bool:
    """Whether client k sends or receives anything."""
    return stage.up_bits[k] + stage.edge_bits[k] + stage.down_bits[k] + stage.given_bits[k] > 0.0


def can_trade(stage: Stage) -> bool:
    """Whether some client can trade cycles for power, because it needs both; then lam stays inside (0, 1)."""
    return bool(((stage.cycles > 0) & (stage.down_bits > 0)).any())


def training_stage(scenario: Scenario, cuts: Array) -> Stage:
    """The stage N (A + U + S + D) + E of a round with these cuts [K]: Eqs. (6) to (10)."""
    s = scenario
    samples = s.num_batches * s.batch_size  # [K] that a client trains on in the round
    return _make_stage(
        fixed_s=samples * s.client_flops[cuts] / (s.cpu_hz * s.client_flops_per_cycle),
        up_bits=samples * s.smashed_bits[cuts],
        edge_bits=s.model_bits[cuts].astype(float),
        up_power_w=s.max_power_w,
        cycles=samples * s.server_flops[cuts] / s.server_flops_per_cycle,
        down_bits=samples * s.gradient_bits[cuts],
        main=starts_of(s.noise_w / s.main_gain),
        edge=starts_of(s.noise_w / s.edge_gain),
        hz=float(s.main_hz),
        power_w=float(s.main_power_w),
        subchannel_hz=float(s.subchannel_hz),
    )


def distribution_stage(scenario: Scenario, cuts: Array) -> Stage:
    """The stage M of a round with these cuts [K]: Eq. (11). It has one budget, the edge server's power."""
    s = scenario
    zero, edge = np.zeros(s.num_clients), starts_of(s.noise_w / s.edge_gain)
    return _make_stage(
        fixed_s=zero,
        up_bits=zero,
        edge_bits=zero,
        up_power_w=s.max_power_w,
        cycles=zero,
        down_bits=s.down_bits[cuts].astype(float),
        main=edge,
        edge=edge,
        hz=1.0,
        power_w=float(s.edge_power_w),
        subchannel_hz=float(s.subchannel_hz),
    )


def stage_of_clients(stage: Stage, clients: Array) -> Stage:
    """The stage of some clients alone; `clients` are indices or a mask [K]."""
    return Stage(
        **{
            name: values[clients] if isinstance(values, np.ndarray) else values
            for name, values in stage._asdict().items()
        }
    )


def even_cycles(stage: Stage) -> Stage:
    """The stage with the server's cycles divided evenly: the server's seconds become part of fixed_s."""
    seconds = stage.cycles * len(stage.cycles) / stage.hz
    return stage._replace(fixed_s=stage.fixed_s + seconds, cycles=np.zeros(len(seconds)))


def even_power(stage: Stage) -> Stage:
    """The stage with the server's power divided evenly: its downlinks become links of given power."""
    return given_power(stage, stage.power_w / len(stage.cycles))


def given_power(stage: Stage, power_w: float) -> Stage:
    """The stage where the server sends to every client with this power."""
    none, client_power_w = np.zeros(len(stage.cycles)), np.full(len(stage.cycles), power_w)
    return stage._replace(given_bits=stage.down_bits, given_power_w=client_power_w, down_bits=none)
