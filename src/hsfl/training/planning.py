"""`hsfl plan`: which cut for which client, what each gets, what holds it up, and what the baselines would take.

No torch: it works from a cost table.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hsfl.allocation.answer import phases_of
from hsfl.allocation.cuts import CutPlan
from hsfl.allocation.measured import best_plan
from hsfl.allocation.policies import policy
from hsfl.config import RunConfig
from hsfl.network.channel import Measured
from hsfl.network.latency import Phases, phases, seconds
from hsfl.training.allocating import Progress, plan_cuts, samples
from hsfl.training.world import World, count_batches

Array = np.ndarray
BASELINES = ("proposed", "rcls", "scls", "ecfa", "gtra", "etra", "even")
BATCH_PHASES = ("client", "smashed", "server", "gradient")


@dataclass(frozen=True)
class ClientPlan:
    client: int
    cut: int
    server_hz: float
    subchannels: list[int] | None  # in the first sample; None where bands are shared or links are measured
    seconds: dict[str, float]  # of each phase over the round
    bottleneck: str
    up_power_w: float | None = None  # over all subchannels, in the first sample; None where links are measured
    down_power_w: float | None = None  # the main server's, for this client


@dataclass(frozen=True)
class Plan:
    policy: str
    round_s: float  # mean over the samples
    lower_bound_s: float  # no cuts and no allocation can beat it, on these samples
    gap: float
    clients: list[ClientPlan]
    baselines_s: dict[str, float]  # mean round on the same samples, by policy
    num_samples: int
    seconds: float  # the search


def make_plan(config: RunConfig, world: World, num_samples: Array, progress: Progress | None = None) -> Plan:
    """Cuts by the policy, the allocation of the first sample, and the baselines on the same samples."""
    num_batches = count_batches(config, num_samples)
    if isinstance(world.links, Measured):
        return _measured_plan(config, world, num_batches)
    settings = config.allocation
    if settings.policy == "even":
        settings = settings.model_copy(update={"policy": "proposed"})
    batch_size, min_cut = config.train.batch_size, config.fleet.min_cut
    cut_plan = plan_cuts(world, settings, batch_size, num_batches, min_cut, progress)
    rounds = samples(world, settings, batch_size, num_batches, min_cut)
    chosen = policy(settings.policy)
    answer = chosen.allocate(rounds[0], cut_plan.cuts, settings.gap, settings.time_limit_s)
    times = phases_of(rounds[0], answer)
    owners = (
        None if answer.owner is None else [np.flatnonzero(answer.owner == k).tolist() for k in range(len(answer.cuts))]
    )
    return Plan(
        settings.policy,
        cut_plan.mean_s,
        cut_plan.lower_bound_s,
        cut_plan.gap,
        _with_powers(
            _clients(cut_plan.cuts, answer.server_hz, owners, times, num_batches),
            answer.main_up_power_w.sum(axis=1).tolist(),
            answer.main_down_power_w.sum(axis=1).tolist(),
        ),
        _baselines(cut_plan, rounds, settings.gap, settings.time_limit_s, world.seed),
        len(rounds),
        cut_plan.seconds,
    )


def _baselines(cut_plan: CutPlan, rounds: list, gap: float, limit_s: float, seed: int) -> dict[str, float]:
    """The mean round of each policy; a policy without a rule for cuts takes the plan's."""
    means = {}
    for name in BASELINES:
        chosen = policy(name)
        if rounds[0].sharing == "bandwidth" and chosen.subchannels == "greedy":
            continue
        cuts = cut_plan.cuts if chosen.cuts == "optimised" else chosen.choose(rounds)
        means[name] = float(np.mean([chosen.allocate(r, cuts, gap, limit_s).round_s for r in rounds]))
    return means


def _measured_plan(config: RunConfig, world: World, num_batches: Array) -> Plan:
    """Exact for the clients' mean speeds."""
    assert isinstance(world.links, Measured)
    fleet, cost, rates = world.fleet, world.cost, world.links.rates
    cuts = np.arange(cost.num_units + 1)
    samples_k = num_batches[:, None] * config.train.batch_size
    own_s = seconds(samples_k * cost.client_flops, (fleet.cpu_hz * fleet.flops_per_cycle)[:, None])
    own_s = own_s + seconds(samples_k * cost.smashed_bits, rates.main_up_bps[:, None])
    own_s = own_s + seconds(samples_k * cost.gradient_bits, rates.main_down_bps[:, None])
    own_s = own_s + seconds(cost.model_bits[None], rates.edge_up_bps[:, None])
    down_s = seconds(cost.model_bits[None], rates.edge_down_bps[:, None])
    work = samples_k * cost.server_flops / world.servers.flops_per_cycle
    feasible = (cuts >= config.fleet.min_cut) & (cuts <= fleet.max_cut[:, None])
    best = best_plan(own_s, work, down_s, feasible, world.servers.main_hz)
    even_hz = np.full(fleet.num_clients, world.servers.main_hz / fleet.num_clients)
    times = phases(
        cost,
        best.cuts,
        config.train.batch_size,
        fleet.cpu_hz * fleet.flops_per_cycle,
        best.server_hz * world.servers.flops_per_cycle,
        rates,
    )

    def round_s(chosen: Array, hz: Array) -> float:
        rows = np.arange(len(chosen))
        server_s = seconds(work[rows, chosen], hz)
        return float((own_s[rows, chosen] + server_s).max() + down_s[rows, chosen].max())

    smallest = np.full(fleet.num_clients, int(fleet.max_cut.min()))
    baselines = {
        "proposed": best.round_s,
        "scls": best_plan(own_s, work, down_s, cuts == smallest[:, None], world.servers.main_hz).round_s,
        "ecfa": round_s(best.cuts, even_hz),
        "even": round_s(best.cuts, even_hz),
    }
    clients = _clients(best.cuts, best.server_hz, None, times, num_batches)
    return Plan("proposed", best.round_s, best.round_s, 0.0, clients, baselines, 1, 0.0)


def _clients(cuts: Array, server_hz: Array, owners: list | None, times: Phases, num_batches: Array) -> list[ClientPlan]:
    plans = []
    for k, cut in enumerate(cuts):
        spent = {name: float(num_batches[k] * getattr(times, f"{name}_s")[k]) for name in BATCH_PHASES}
        spent |= {name: float(getattr(times, f"{name}_s")[k]) for name in ("model_up", "model_down")}
        bottleneck = max(spent, key=lambda name: spent[name])
        plans.append(ClientPlan(k, int(cut), float(server_hz[k]), owners[k] if owners else None, spent, bottleneck))
    return plans


def _with_powers(plans: list[ClientPlan], up_w: list[float], down_w: list[float]) -> list[ClientPlan]:
    return [replace(plan, up_power_w=up, down_power_w=down) for plan, up, down in zip(plans, up_w, down_w)]


def device_table(
    world: World, config: RunConfig, num_samples: float, device: dict[str, float]
) -> tuple[list[dict[str, Any]], int | None]:
    """Every cut for one device: seconds of each phase, whether it fits, and the fastest cut that does.

    The device has cpu (cycles per second), memory (bits), up and down (bits per second); of the main server it gets the
    even share of `fleet.num_clients` clients.
    """
    cost, servers = world.cost, world.servers
    hz = servers.main_hz / config.fleet.num_clients * servers.flops_per_cycle
    speed = device["cpu"] * config.fleet.flops_per_cycle
    rows: list[dict[str, Any]] = []
    for cut in range(config.fleet.min_cut, cost.num_units + 1):
        spent = {
            "client": num_samples * cost.client_flops[cut] / speed,
            "smashed": num_samples * cost.smashed_bits[cut] / device["up"],
            "server": num_samples * cost.server_flops[cut] / hz,
            "gradient": num_samples * cost.gradient_bits[cut] / device["down"],
            "model_up": cost.model_bits[cut] / device["up"],
            "model_down": cost.model_bits[cut] / device["down"],
        }
        memory_bits = float(cost.memory_bits[cut]) if cost.memory_bits is not None else float(cost.model_bits[cut])
        fits = memory_bits <= device.get("memory", np.inf)
        times = {name: float(value) for name, value in spent.items()}
        rows.append(
            {"cut": cut, "fits": fits, "memory_bits": memory_bits, "seconds": times, "round_s": sum(times.values())}
        )
    possible = [row for row in rows if row["fits"]]
    return rows, min(possible, key=lambda row: float(row["round_s"]))["cut"] if possible else None
