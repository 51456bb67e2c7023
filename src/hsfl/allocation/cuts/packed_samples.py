"""Many rounds at once for choosing cuts: S samples of gains and speeds as arrays, and a compiled mean round time.

Legend: K clients, I subchannels, C cuts, S samples, P candidates. The same samples judge every candidate (common random
numbers), so candidates differ by their cuts and not by luck.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from hsfl.allocation.numba_cache import compiled
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.stage.client_prices import price, shares_of, solve_shares
from hsfl.allocation.stage.local_search import first_owner, local_search
from hsfl.allocation.stage.stage import Stage, Starts, make_stage_compiled, needs_subchannel, starts_of
from hsfl.allocation.stage.water_filling import CURVE_ROWS
from hsfl.errors import InputError

Array = np.ndarray


class Samples(NamedTuple):
    """The numbers of a round, with gains and speeds for every sample."""

    client_flops: Array  # [C]
    server_cycles: Array  # [C]
    smashed_bits: Array  # [C]
    gradient_bits: Array  # [C]
    model_bits: Array  # [C]
    model_down_bits: Array  # [C]
    num_samples: Array  # [K] data samples a client trains on in a round
    max_power_w: Array  # [K]
    speed: Array  # [S, K] FLOPs per second
    main: Starts  # [S, K, I] towards the main server
    edge: Starts  # [S, K, I] towards the edge server
    main_hz: float
    main_power_w: float
    edge_power_w: float
    subchannel_hz: float


def pack_samples(scenarios: Sequence[Scenario]) -> Samples:
    """Scenarios that differ in gains and speeds only, as one record.

    Arrays are copied, because numba would compile everything again for read-only arrays.
    """
    s = scenarios[0]
    varying = ("cpu_hz", "main_gain", "edge_gain")
    for index, other in enumerate(scenarios):
        for name in s.__dataclass_fields__:
            if name not in varying and not np.array_equal(getattr(s, name), getattr(other, name)):
                raise InputError(f"samples[{index}].{name} differs from samples[0]; only gains and speeds may vary")
    return Samples(
        client_flops=np.array(s.client_flops, float),
        server_cycles=s.server_flops / s.server_flops_per_cycle,
        smashed_bits=np.array(s.smashed_bits, float),
        gradient_bits=np.array(s.gradient_bits, float),
        model_bits=np.array(s.model_bits, float),
        model_down_bits=np.array(s.down_bits, float),
        num_samples=s.num_batches * s.batch_size,
        max_power_w=np.array(s.max_power_w, float),
        speed=np.stack([x.cpu_hz * x.client_flops_per_cycle for x in scenarios]),
        main=starts_of(np.stack([x.noise_w / x.main_gain for x in scenarios])),
        edge=starts_of(np.stack([x.noise_w / x.edge_gain for x in scenarios])),
        main_hz=float(s.main_hz),
        main_power_w=float(s.main_power_w),
        edge_power_w=float(s.edge_power_w),
        subchannel_hz=float(s.subchannel_hz),
    )


@compiled
def _in_sample(starts: Starts, s: int) -> Starts:
    """The starts [K, I] of one sample."""
    return Starts(start_w=starts.start_w[s], log_start=starts.log_start[s], order=starts.order[s])


@compiled
def _training_of(x: Samples, s: int, cuts: Array) -> Stage:
    """`stage.training_stage` of sample s with cuts [K]."""
    n = x.num_samples
    return make_stage_compiled(
        fixed_s=n * x.client_flops[cuts] / x.speed[s],
        up_bits=n * x.smashed_bits[cuts],
        edge_bits=x.model_bits[cuts],
        up_power_w=x.max_power_w,
        cycles=n * x.server_cycles[cuts],
        down_bits=n * x.gradient_bits[cuts],
        main=_in_sample(x.main, s),
        edge=_in_sample(x.edge, s),
        hz=x.main_hz,
        power_w=x.main_power_w,
        subchannel_hz=x.subchannel_hz,
    )


@compiled
def _distribution_of(x: Samples, s: int, cuts: Array) -> Stage:
    """`stage.distribution_stage` of sample s with cuts [K]."""
    zero, edge = np.zeros(cuts.shape[0]), _in_sample(x.edge, s)
    return make_stage_compiled(
        fixed_s=zero,
        up_bits=zero,
        edge_bits=zero,
        up_power_w=x.max_power_w,
        cycles=zero,
        down_bits=x.model_down_bits[cuts],
        main=edge,
        edge=edge,
        hz=1.0,
        power_w=x.edge_power_w,
        subchannel_hz=x.subchannel_hz,
    )


@compiled
def _local_search_from(stage: Stage, owner: Array) -> tuple[Array, float, float, float]:
    """Local search from the owners [I] of another round, or from scratch where they leave a client without a subchannel."""
    counts = np.zeros(stage.start_w.shape[0], np.int64)
    for i in range(owner.shape[0]):
        if owner[i] >= 0:
            counts[owner[i]] += 1
    usable = owner.min() >= 0
    for k in range(counts.shape[0]):
        usable = usable and (counts[k] > 0 or not needs_subchannel(stage, k))
    return local_search(stage, owner if usable else first_owner(stage), 0.0, 0.0)


@compiled
def _evaluate_candidates(x: Samples, cuts: Array, owners: Array, round_s: Array) -> None:
    """Fill round_s [P, S], the seconds of candidates cuts [P, K] by local search in both stages.

    owners [2, S, I] are where the search starts; they stay as they are.
    """
    for p in range(cuts.shape[0]):
        for s in range(x.speed.shape[0]):
            _, training_s, _, _ = _local_search_from(_training_of(x, s, cuts[p]), owners[0, s])
            _, distribution_s, _, _ = _local_search_from(_distribution_of(x, s, cuts[p]), owners[1, s])
            round_s[p, s] = training_s + distribution_s


def warm_owners(x: Samples, cuts: Array, owners: Array) -> None:
    """Replace owners [2, S, I] by what local search finds from them for cuts [K]."""
    for s in range(x.speed.shape[0]):
        owners[0, s], _, _, _ = _local_search_from(_training_of(x, s, cuts), owners[0, s])
        owners[1, s], _, _, _ = _local_search_from(_distribution_of(x, s, cuts), owners[1, s])


def evaluate_all(x: Samples, cuts: Array, owners: Array, threads: int = 1) -> Array:
    """The rounds [P, S] of candidates cuts [P, K] in seconds. Threads divide the candidates among them: compiled code
    releases the interpreter's lock.
    """
    round_s = np.empty((len(cuts), len(x.speed)))
    if threads == 1 or len(cuts) < 2:
        _evaluate_candidates(x, cuts, owners, round_s)
        return round_s
    edges = np.linspace(0, len(cuts), threads + 1).astype(int)

    def work(a: int, b: int) -> None:
        _evaluate_candidates(x, cuts[a:b], owners, round_s[a:b])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, edges[:-1], edges[1:]))
    return round_s


@compiled
def _add_savings(
    stage: Stage, share: Array, T: float, rho: float, lam: float, x: Samples, s: int, training: bool, saved: Array
) -> None:
    """Add to saved [K, C] what another cut of one client would save in one stage of sample s, at fixed shares [K, I].

    A sum of prices V that changes by dV moves T by dV / -V'(T).
    """
    K, C = saved.shape
    subs = share.shape[1]
    curve, spare, present_price = np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs)), np.empty(K)
    slope = 0.0
    for k in range(K):
        present_price[k] = price(stage, k, share[k], curve, spare, T, rho, lam)
        later_price = price(stage, k, share[k], curve, spare, T * 1.001, rho, lam)
        slope += (present_price[k] - later_price) / (0.001 * T)
    if slope <= 0.0:
        return
    for cut in range(C):
        other_cuts = np.full(K, cut)
        other_stage = _training_of(x, s, other_cuts) if training else _distribution_of(x, s, other_cuts)
        for k in range(K):
            other_price = price(other_stage, k, share[k], curve, spare, T, rho, lam)
            saved[k, cut] += (present_price[k] - min(other_price, 1e3)) / slope / x.speed.shape[0]


@compiled
def predict(x: Samples, cuts: Array, owners: Array, shares: Array) -> Array:
    """About how many seconds another cut of one client would save on average, at fixed shares, [K, C].

    cuts [K] are the present cuts. shares [2, S, K, I] where bands are shared; empty where local search from owners [2, S, I]
    finds the shares.
    """
    S, K = x.speed.shape
    saved = np.zeros((K, x.model_bits.shape[0]))
    for s in range(S):
        for phase in range(2):
            training = phase == 0
            stage = _training_of(x, s, cuts) if training else _distribution_of(x, s, cuts)
            if shares.shape[0] == 0:
                owner, T, rho, lam = _local_search_from(stage, owners[phase, s])
                share = shares_of(owner, K)
            else:
                share = shares[phase, s].copy()
                T, rho, lam = solve_shares(stage, share, 0.0, 0.0)
            _add_savings(stage, share, T, rho, lam, x, s, training, saved)
    return saved
