"""One stage of a round as plain arrays for the compiled solvers.

Legend: K clients, I subchannels. A round has two stages that share nothing: training (with the model upload) and model
distribution. Both are the same problem with other numbers: c_k + n_k / f_k + d_k / R_k <= T under two budgets.
"""

from typing import NamedTuple

import numpy as np

from hsfl.allocation.compiled import compiled
from hsfl.allocation.scenario import Scenario

Array = np.ndarray


class Stage(NamedTuple):
    """Numbers of one stage; all bits, cycles and seconds are totals over the stage (N mini-batches)."""

    fixed_s: Array  # [K] own computation, N A
    up_bits: Array  # [K] smashed data, on `start_w` with the client's power
    edge_bits: Array  # [K] model upload, on `edge_start_w` with the client's power
    up_power_w: Array  # [K]
    cycles: Array  # [K] n, work for the server
    down_bits: Array  # [K] d, on `start_w` with a share of `power_w`
    given_bits: Array  # [K] downlink bits whose power is given, not shared (even power): then d is 0
    given_power_w: Array  # [K]
    start_w: Array  # [K, I] noise / gain: the water level at which a subchannel starts to carry bits
    log_start: Array  # [K, I]
    order: Array  # [K, I] subchannels from the best
    edge_start_w: Array  # [K, I]
    edge_log_start: Array  # [K, I]
    edge_order: Array  # [K, I]
    hz: float
    power_w: float
    subchannel_hz: float


@compiled
def needs_subchannel(stage: Stage, k: int) -> bool:
    return stage.up_bits[k] + stage.edge_bits[k] + stage.down_bits[k] + stage.given_bits[k] > 0.0


def _make(
    fixed_s: Array,
    up_bits: Array,
    edge_bits: Array,
    up_power_w: Array,
    cycles: Array,
    down_bits: Array,
    start_w: Array,
    edge_start_w: Array,
    hz: float,
    power_w: float,
    subchannel_hz: float,
) -> Stage:
    order = np.argsort(start_w, axis=1, kind="stable")
    log_start = np.log(start_w)
    same = edge_start_w is start_w
    edge_order = order if same else np.argsort(edge_start_w, axis=1, kind="stable")
    edge_log_start = log_start if same else np.log(edge_start_w)
    zero = np.zeros(len(fixed_s))
    return Stage(
        fixed_s, up_bits, edge_bits, up_power_w, cycles, down_bits, zero, zero, start_w, log_start, order,
        edge_start_w, edge_log_start, edge_order, float(hz), float(power_w), float(subchannel_hz),
    )  # fmt: skip


def training_stage(scenario: Scenario, cuts: Array) -> Stage:
    """N (A + U + S + D) + E: Eqs. (6) to (10)."""
    s = scenario
    batches = s.num_batches * s.batch_size  # samples of the round, [K]
    return _make(
        fixed_s=batches * s.client_flops[cuts] / (s.cpu_hz * s.client_flops_per_cycle),
        up_bits=batches * s.smashed_bits[cuts],
        edge_bits=s.model_bits[cuts].astype(float),
        up_power_w=s.max_power_w,
        cycles=batches * s.server_flops[cuts] / s.server_flops_per_cycle,
        down_bits=batches * s.gradient_bits[cuts],
        start_w=s.noise_w / s.main_gain,
        edge_start_w=s.noise_w / s.edge_gain,
        hz=s.main_hz,
        power_w=s.main_power_w,
        subchannel_hz=s.subchannel_hz,
    )


def distribution_stage(scenario: Scenario, cuts: Array) -> Stage:
    """M: Eq. (11). One budget, the edge server's power."""
    s = scenario
    zero = np.zeros(s.num_clients)
    start_w = s.noise_w / s.edge_gain
    return _make(
        fixed_s=zero,
        up_bits=zero,
        edge_bits=zero,
        up_power_w=s.max_power_w,
        cycles=zero,
        down_bits=s.model_bits[cuts].astype(float),
        start_w=start_w,
        edge_start_w=start_w,
        hz=1.0,
        power_w=s.edge_power_w,
        subchannel_hz=s.subchannel_hz,
    )


def only(stage: Stage, clients: Array) -> Stage:
    """The stage of these clients alone (indices or a mask)."""
    return Stage(
        **{name: part[clients] if isinstance(part, np.ndarray) else part for name, part in stage._asdict().items()}
    )


def even_cycles(stage: Stage) -> Stage:
    """The server's cycles divided evenly: its seconds become part of what is fixed."""
    seconds = stage.cycles * len(stage.cycles) / stage.hz
    return stage._replace(fixed_s=stage.fixed_s + seconds, cycles=np.zeros(len(seconds)))


def even_power(stage: Stage) -> Stage:
    """The server's power divided evenly among clients: downlinks become links of given power."""
    each = np.full(len(stage.cycles), stage.power_w / len(stage.cycles))
    return stage._replace(given_bits=stage.down_bits, given_power_w=each, down_bits=np.zeros(len(each)))
