"""The solver `scip`: both stages given to SCIP as convex MINLPs, the reference and the yardstick.

Legend: K clients, I subchannels. Variables: x ownership (binary), z power as a fraction of its budget, r rates in nats
(r <= sum of ln(1 + P z / start)), f cycles as a fraction of the server's, T in units of a rough guess. SCIP's answers are
feasible only to a tolerance. So only the assignment is taken from SCIP; cycles and powers are solved again for it by our
equations, which also give round_s.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hsfl.allocation.answer import Allocation, SolveStatus
from hsfl.allocation.exact import DEFAULT_GAP, solve_round, stage_solver
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.stage.client_prices import alone_s, shares_of, solve_shares
from hsfl.allocation.stage.local_search import first_owner
from hsfl.allocation.stage.stage import Stage
from hsfl.allocation.stage.stage_answer import StageAnswer, StopWhen, TimeLimit
from hsfl.errors import InputError

Array = np.ndarray
LEAST_NEED = 1e-5  # fraction of the server, or nats per hertz and second, that a client needs to end at the guess
SIGNALS = (1e-5, 1e12)  # range of received power over noise
TOLERANCE = 2e-6  # SCIP's feasibility tolerance, doubled: the relative error that its bound may have


@dataclass(frozen=True)
class ScipResult:
    """What SCIP answered: its assignment (or None), the cycles and downlink power it chose, and its bound in seconds."""

    owner: Array | None  # [I]
    hz: Array  # [K]
    down_w: Array  # [K, I]
    bound_s: float


def solve_by_scip(scenario: Scenario, cuts: Array, gap: float = DEFAULT_GAP, time_limit_s: float = 600.0) -> Allocation:
    """Allocate one round with cuts [K] by SCIP, to a relative gap or a time limit.

    Where SCIP's tolerance ends the solve before both, the status is `heuristic`.
    """
    check_exclusive(scenario)
    answer = solve_round(scenario, cuts, solve_stage_by_scip, gap, time_limit_s, keeper=stage_solver(scenario))
    ended_itself = answer.status is SolveStatus.TIME_LIMIT and answer.seconds < 0.5 * time_limit_s
    return replace(answer, status=SolveStatus.HEURISTIC) if ended_itself else answer


def check_exclusive(scenario: Scenario, solver: str = "scip") -> None:
    """An error where bands are shared, which the solver cannot do."""
    if scenario.sharing != "exclusive":
        raise InputError(
            f'sharing is "{scenario.sharing}" but solver {solver} decides who owns each subchannel; use solver exact'
        )


def solve_stage_by_scip(stage: Stage, goal: StopWhen, clock: TimeLimit) -> StageAnswer:
    """SCIP's assignment with the T of our optimal cycles and powers, and SCIP's bound."""
    start = first_owner(stage)
    share = first = shares_of(start, len(stage.cycles))
    guess_s, rho, lam = solve_shares(stage, first, 0.0, 0.0)
    if guess_s <= 0.0:
        return StageAnswer(first, guess_s, rho, lam)
    result = _run_scip(stage, guess_s, goal.gap, clock.limit_s - clock.seconds())
    if result.owner is not None:
        share = shares_of(result.owner, len(stage.cycles))
    T, rho, lam = solve_shares(stage, share, 0.0, 0.0)
    if not math.isfinite(T):  # within its tolerance SCIP may leave a client without a subchannel
        share, T = first, guess_s
    return StageAnswer(share, T, rho, lam, result.bound_s if _has_digits(stage, guess_s) else alone_s(stage))


def _has_digits(stage: Stage, guess_s: float) -> bool:
    """Whether SCIP's tolerance, 1e-6 of everything, is far below what clients need; if not, its bound proves nothing.

    guess_s: a rough guess of T.
    """
    b = stage.subchannel_hz / math.log(2.0)
    bits = np.stack([stage.up_bits, stage.edge_bits, stage.down_bits])
    needs = np.concatenate([stage.cycles / (stage.hz * guess_s), bits.ravel() / (b * guess_s)])
    low, high = SIGNALS
    signals = np.stack([stage.up_power_w[:, None] / stage.edge_start_w, stage.up_power_w[:, None] / stage.start_w])
    signals = np.append(signals.ravel(), stage.power_w / stage.start_w)
    return bool((needs[needs > 0.0] >= LEAST_NEED).all() and signals.min() >= low and signals.max() <= high)


def _run_scip(
    stage: Stage, guess_s: float, gap: float, time_limit_s: float, cycles_s: Array | None = None
) -> ScipResult:
    """Build and solve the MINLP, in units of guess_s seconds, to a relative gap or a time limit.

    cycles_s [K]: where given, the server's seconds are fixed and only subchannels and powers are decided.
    """
    from pyscipopt import Model

    model = Model()
    model.hideOutput()
    model.setParam("limits/time", max(time_limit_s, 1e-3))
    model.setParam("limits/gap", gap)
    clients, subs = stage.start_w.shape
    T = model.addVar("T", lb=0.0, ub=1.0)
    x = [[model.addVar(vtype="B") for _ in range(subs)] for _ in range(clients)]
    for i in range(subs):
        model.addCons(sum(x[k][i] for k in range(clients)) <= 1)
    f = _cycles(model, stage, cycles_s)
    down: dict[int, list[Any]] = {}
    for k in range(clients):
        _deadline(model, stage, k, guess_s, T, x[k], f, down, cycles_s)
    if down:
        model.addCons(sum(z for row in down.values() for z in row) <= 1)
    model.setObjective(T, "minimize")
    model.optimize()
    return _read(model, stage, guess_s, x, f, down)


def _cycles(model: Any, stage: Stage, cycles_s: Array | None) -> dict[int, Any]:
    """Variables for the fractions of the server's cycles, by client, with the constraints C2 and C3."""
    if cycles_s is not None:
        return {}
    f = {k: model.addVar(lb=1e-7, ub=1.0) for k in np.flatnonzero(stage.cycles > 0).tolist()}
    if f:
        model.addCons(sum(f.values()) <= 1)
    return f


def _deadline(
    model: Any,
    stage: Stage,
    k: int,
    guess_s: float,
    T: Any,
    x: list[Any],
    f: dict[int, Any],
    down: dict[int, list[Any]],
    cycles_s: Array | None,
) -> None:
    """Add the deadline c_k + n_k / f_k + d_k / R_k <= T of client k, in units of guess_s.

    x are the client's ownership variables, f and cycles_s as in `_run_scip`; the downlink powers join `down`.
    """
    b = stage.subchannel_hz / math.log(2.0)
    total: Any = stage.fixed_s[k] / guess_s
    links = (
        (stage.up_bits[k], stage.up_power_w[k], stage.start_w[k], False),
        (stage.edge_bits[k], stage.up_power_w[k], stage.edge_start_w[k], False),
        (stage.down_bits[k], stage.power_w, stage.start_w[k], True),
    )
    for bits, power_w, start_w, shared in links:
        if bits <= 0.0:
            continue
        z, rate = _rate(model, power_w, start_w, x)
        if shared:
            down[k] = z
        else:
            model.addCons(sum(z) <= 1)  # C4
        total = total + bits / (b * guess_s) / rate
    if cycles_s is not None:
        total = total + cycles_s[k] / guess_s
    elif k in f:
        total = total + stage.cycles[k] / (stage.hz * guess_s) / f[k]
    model.addCons(total <= T)


def _rate(model: Any, power_w: float, start_w: Array, x: list[Any]) -> tuple[list[Any], Any]:
    """Variables for the powers z_i <= x_i, as fractions of power_w, and for a rate in nats below the sum of log terms."""
    from pyscipopt import log

    ratios = power_w / start_w
    z = [model.addVar(lb=0.0, ub=1.0) for _ in x]
    for owned, fraction in zip(x, z, strict=True):
        model.addCons(fraction <= owned)
    rate = model.addVar(lb=1e-6, ub=float(np.log1p(ratios).sum()))
    model.addCons(rate <= sum(log(1 + float(ratio) * fraction) for ratio, fraction in zip(ratios, z, strict=True)))
    return z, rate


def _read(
    model: Any, stage: Stage, guess_s: float, x: list[list[Any]], f: dict[int, Any], down: dict[int, list[Any]]
) -> ScipResult:
    """SCIP's best solution and bound, in seconds, cycles per second and watts."""
    clients, subs = stage.start_w.shape
    bound_s = max(0.0, model.getDualbound() * guess_s) * (1.0 - TOLERANCE)
    if not math.isfinite(bound_s) or model.getStatus() == "infeasible":
        bound_s = 0.0
    hz, down_w = np.zeros(clients), np.zeros((clients, subs))
    if model.getNSols() == 0:
        return ScipResult(None, hz, down_w, bound_s)
    best = model.getBestSol()
    owns = np.array([[model.getSolVal(best, x[k][i]) > 0.5 for i in range(subs)] for k in range(clients)])
    owner = np.where(owns.any(axis=0), owns.argmax(axis=0), -1)
    for k, fraction in f.items():
        hz[k] = model.getSolVal(best, fraction) * stage.hz
    for k, row in down.items():
        down_w[k] = [max(0.0, model.getSolVal(best, z)) * stage.power_w * owns[k, i] for i, z in enumerate(row)]
    return ScipResult(owner, hz, down_w, bound_s)
