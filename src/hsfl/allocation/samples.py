"""Many rounds at once for choosing cuts: S samples of gains and speeds as arrays, and a compiled mean round time.

Legend: K clients, I subchannels, C cuts, S samples, P candidate cut vectors. The same samples judge every candidate
(common random numbers), so candidates differ by their cuts and not by luck.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hsfl.allocation.compiled import compiled
from hsfl.allocation.curve import CURVE_ROWS
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.spectrum import first_owner, local_search, price, shares_of, solve_shares
from hsfl.allocation.stage import Stage, needs_subchannel
from hsfl.errors import InputError

Array = np.ndarray


class Samples(NamedTuple):
    """What a round needs, with gains and speeds for every sample."""

    client_flops: Array  # [C]
    server_cycles: Array  # [C]
    smashed_bits: Array  # [C]
    gradient_bits: Array  # [C]
    model_bits: Array  # [C]
    num_samples: Array  # [K] data samples a client trains on in a round
    max_power_w: Array  # [K]
    speed: Array  # [S, K] FLOPs per second
    start_w: Array  # [S, K, I]
    log_start: Array
    order: Array
    edge_start_w: Array
    edge_log_start: Array
    edge_order: Array
    main_hz: float
    main_power_w: float
    edge_power_w: float
    subchannel_hz: float


def pack(scenarios: Sequence[Scenario]) -> Samples:
    """Scenarios that differ in gains and speeds only, as one record. Copies, since read-only arrays would be compiled for anew."""
    if not scenarios:
        raise InputError("samples is empty; give at least one scenario to choose cuts on")
    s = scenarios[0]
    varying = ("cpu_hz", "main_gain", "edge_gain")
    for index, other in enumerate(scenarios):
        for name in s.__dataclass_fields__:
            if name not in varying and not np.array_equal(getattr(s, name), getattr(other, name)):
                raise InputError(f"samples[{index}].{name} differs from samples[0]; only gains and speeds may vary")
    start = np.stack([x.noise_w / x.main_gain for x in scenarios])
    edge = np.stack([x.noise_w / x.edge_gain for x in scenarios])
    return Samples(
        client_flops=np.array(s.client_flops, float),
        server_cycles=s.server_flops / s.server_flops_per_cycle,
        smashed_bits=np.array(s.smashed_bits, float),
        gradient_bits=np.array(s.gradient_bits, float),
        model_bits=np.array(s.model_bits, float),
        num_samples=s.num_batches * s.batch_size,
        max_power_w=np.array(s.max_power_w, float),
        speed=np.stack([x.cpu_hz * x.client_flops_per_cycle for x in scenarios]),
        start_w=start,
        log_start=np.log(start),
        order=np.argsort(start, axis=2, kind="stable"),
        edge_start_w=edge,
        edge_log_start=np.log(edge),
        edge_order=np.argsort(edge, axis=2, kind="stable"),
        main_hz=float(s.main_hz),
        main_power_w=float(s.main_power_w),
        edge_power_w=float(s.edge_power_w),
        subchannel_hz=float(s.subchannel_hz),
    )


def with_draws(scenario: Scenario, main_gain: Array, edge_gain: Array, cpu_hz: Array) -> list[Scenario]:
    """One scenario for each draw: gains [S, K, I] and speeds [S, K]."""
    return [
        replace(scenario, main_gain=main, edge_gain=edge, cpu_hz=hz).checked()
        for main, edge, hz in zip(main_gain, edge_gain, cpu_hz, strict=True)
    ]


@compiled
def training_of(x: Samples, s: int, cuts: Array) -> Stage:
    """`stage.training_stage` of one sample."""
    n = x.num_samples
    zero = np.zeros(cuts.shape[0])
    return Stage(
        n * x.client_flops[cuts] / x.speed[s], n * x.smashed_bits[cuts], x.model_bits[cuts], x.max_power_w,
        n * x.server_cycles[cuts], n * x.gradient_bits[cuts], zero, zero, x.start_w[s], x.log_start[s], x.order[s],
        x.edge_start_w[s], x.edge_log_start[s], x.edge_order[s], x.main_hz, x.main_power_w, x.subchannel_hz,
    )  # fmt: skip


@compiled
def distribution_of(x: Samples, s: int, cuts: Array) -> Stage:
    """`stage.distribution_stage` of one sample."""
    zero = np.zeros(cuts.shape[0])
    return Stage(
        zero, zero, zero, x.max_power_w, zero, x.model_bits[cuts], zero, zero, x.edge_start_w[s], x.edge_log_start[s],
        x.edge_order[s], x.edge_start_w[s], x.edge_log_start[s], x.edge_order[s], 1.0, x.edge_power_w, x.subchannel_hz,
    )  # fmt: skip


@compiled
def search_from(stage: Stage, owner: Array) -> tuple[Array, float, float, float]:
    """Local search from an owner of another round, or from scratch where someone would be left without."""
    counts = np.zeros(stage.start_w.shape[0], np.int64)
    for i in range(owner.shape[0]):
        if owner[i] >= 0:
            counts[owner[i]] += 1
    usable = owner.min() >= 0
    for k in range(counts.shape[0]):
        usable = usable and (counts[k] > 0 or not needs_subchannel(stage, k))
    return local_search(stage, owner if usable else first_owner(stage), 0.0, 0.0)


@compiled
def evaluate(x: Samples, cuts: Array, owners: Array, round_s: Array) -> None:
    """round_s [P, S] of cuts [P, K] by local search, both stages. owners [2, S, I] warm it and stay as they are."""
    for p in range(cuts.shape[0]):
        for s in range(x.speed.shape[0]):
            _, training_s, _, _ = search_from(training_of(x, s, cuts[p]), owners[0, s])
            _, distribution_s, _, _ = search_from(distribution_of(x, s, cuts[p]), owners[1, s])
            round_s[p, s] = training_s + distribution_s


@compiled
def warm_owners(x: Samples, cuts: Array, owners: Array) -> None:
    """Owners [2, S, I] for these cuts, from those they hold."""
    for s in range(x.speed.shape[0]):
        owners[0, s], _, _, _ = search_from(training_of(x, s, cuts), owners[0, s])
        owners[1, s], _, _, _ = search_from(distribution_of(x, s, cuts), owners[1, s])


def evaluate_all(x: Samples, cuts: Array, owners: Array, threads: int = 1) -> Array:
    """round_s [P, S]; threads share the candidates (compiled code releases the interpreter's lock)."""
    round_s = np.empty((len(cuts), len(x.speed)))
    if threads == 1 or len(cuts) < 2:
        evaluate(x, cuts, owners, round_s)
        return round_s
    edges = np.linspace(0, len(cuts), threads + 1).astype(int)

    def work(a: int, b: int) -> None:
        evaluate(x, cuts[a:b], owners, round_s[a:b])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, edges[:-1], edges[1:]))
    return round_s


@compiled
def predict(x: Samples, cuts: Array, owners: Array, shares: Array, lowest: Array, highest: Array) -> Array:
    """About how many seconds [K, C] another cut of one client would save on average: prices at fixed assignments.

    A price that changes by dV moves T by dV / -V'(T); cuts out of range save minus infinity. shares [2, S, K, I] where
    bands are shared, empty where the owners [2, S, I] are to be searched.
    """
    S, K = x.speed.shape
    C = x.model_bits.shape[0]
    subs = x.start_w.shape[2]
    work = (np.empty((CURVE_ROWS, subs)), np.empty((CURVE_ROWS, subs)))
    saved = np.zeros((K, C))
    for s in range(S):
        for phase in range(2):
            stage = training_of(x, s, cuts) if phase == 0 else distribution_of(x, s, cuts)
            if shares.shape[0] == 0:
                owner, T, rho, lam = search_from(stage, owners[phase, s])
                share = shares_of(owner, K)
            else:
                share = shares[phase, s].copy()
                T, rho, lam = solve_shares(stage, share, 0.0, 0.0)
            here = np.empty(K)
            slope = 0.0
            for k in range(K):
                here[k] = price(stage, k, share[k], work[0], work[1], T, rho, lam)
                later = price(stage, k, share[k], work[0], work[1], T * 1.001, rho, lam)
                slope += (here[k] - later) / (0.001 * T)
            if slope <= 0.0:
                continue
            for cut in range(C):
                other = np.full(K, cut)
                new = training_of(x, s, other) if phase == 0 else distribution_of(x, s, other)
                for k in range(K):
                    value = price(new, k, share[k], work[0], work[1], T, rho, lam)
                    saved[k, cut] += (here[k] - min(value, 1e3)) / slope / S
    for k in range(K):
        for cut in range(C):
            if cut < lowest[k] or cut > highest[k]:
                saved[k, cut] = -np.inf
    return saved
