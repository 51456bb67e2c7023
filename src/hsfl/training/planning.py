"""`hsfl plan`: which cut for which client, what each gets, what holds it up, and what the baselines would take.

No torch: it works from a cost table.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hsfl.allocation.answer import Allocation, phases_of
from hsfl.allocation.cuts import CutPlan, CutSettings
from hsfl.allocation.measured import optimal_cycles
from hsfl.allocation.measured_cuts import MeasuredRounds
from hsfl.allocation.policies import policy
from hsfl.allocation.scenario import Scenario
from hsfl.config import AllocationConfig, RunConfig
from hsfl.network.channel import Measured, RoundDraw
from hsfl.network.latency import Phases, phases
from hsfl.training.allocating import Progress, plan_cuts, samples
from hsfl.training.cuts import sample_draws
from hsfl.training.measured_links import measured_rounds, ruled_cuts
from hsfl.training.world import World, count_batches

Array = np.ndarray
BASELINES = ("proposed", "rcls", "scls", "ecfa", "gtra", "etra", "even")
MEASURED_BASELINES = ("proposed", "rcls", "scls", "ecfa")  # no subchannels and no power, so even is ecfa
BATCH_PHASES = ("client", "smashed", "server", "gradient")
POWERS = ("main_up_power_w", "main_down_power_w", "edge_up_power_w", "edge_down_power_w")


@dataclass(frozen=True)
class ClientPlan:
    """One client in the first sample. Powers are sums over its subchannels; None where links are measured."""

    client: int
    cut: int
    server_hz: float
    subchannels: list[int] | None  # that it owns; None where bands are shared or links are measured
    share: list[float] | None  # of each subchannel, where bands are shared
    main_up_power_w: float | None
    main_down_power_w: float | None
    edge_up_power_w: float | None
    edge_down_power_w: float | None
    seconds: dict[str, float]  # of each phase over the round
    bottleneck: str


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
    settings = config.allocation
    if settings.policy in ("even", "own"):  # even plans nothing, and HSFL's own is proposed
        settings = settings.model_copy(update={"policy": "proposed"})
    batch_size, min_cut = config.train.batch_size, config.fleet.min_cut
    cut_plan = plan_cuts(world, settings, batch_size, num_batches, min_cut, progress)
    if isinstance(world.links, Measured):
        draws = sample_draws(world, settings.samples).sample(slice(settings.samples))
        every = measured_rounds(world, draws, batch_size, num_batches, min_cut)
        clients = _measured_clients(config, settings.policy, world, cut_plan.cuts, every, draws.sample(0), num_batches)
        baselines = _measured_baselines(cut_plan, every, world.seed)
    else:
        rounds = samples(world, settings, batch_size, num_batches, min_cut)
        answer = policy(settings.policy).allocate(rounds[0], cut_plan.cuts, settings.gap, settings.time_limit_s)
        clients = _clients(answer.cuts, answer.server_hz, phases_of(rounds[0], answer), num_batches, answer)
        baselines = _baselines(cut_plan, rounds, settings, world.seed)
    return Plan(
        settings.policy,
        cut_plan.mean_s,
        cut_plan.lower_bound_s,
        cut_plan.gap,
        clients,
        baselines,
        len(cut_plan.round_s),
        cut_plan.seconds,
    )


def _baselines(cut_plan: CutPlan, rounds: list[Scenario], settings: AllocationConfig, seed: int) -> dict[str, float]:
    """The mean round of each policy; a policy without a rule for cuts takes the plan's."""
    means = {}
    for name in BASELINES:
        chosen = policy(name)
        if rounds[0].sharing == "bandwidth" and chosen.subchannels == "greedy":
            continue
        cuts = cut_plan.cuts if chosen.cuts == "optimised" else chosen.choose(rounds, CutSettings(seed=seed))
        answers = (chosen.allocate(r, cuts, settings.gap, settings.time_limit_s) for r in rounds)
        means[name] = float(np.mean([answer.round_s for answer in answers]))
    if means["even"] == means["ecfa"]:
        del means["even"]  # the same, shown once
    return means


def _measured_baselines(cut_plan: CutPlan, rounds: MeasuredRounds, seed: int) -> dict[str, float]:
    means = {}
    for name in MEASURED_BASELINES:
        chosen = policy(name)
        cuts = cut_plan.cuts if chosen.cuts == "optimised" else ruled_cuts(chosen, rounds, seed)
        round_s = rounds.even_round_s(cuts) if chosen.cycles == "even" else rounds.round_s(cuts)
        means[name] = float(round_s.mean())
    return means


def _measured_clients(
    config: RunConfig, name: str, world: World, cuts: Array, rounds: MeasuredRounds, draw: RoundDraw, num_batches: Array
) -> list[ClientPlan]:
    """Under the policy's cycles in the first sample, which is `draw`."""
    assert draw.rates is not None, "measured links draw rates"
    own_s, work, _ = rounds.at(cuts)
    server_hz = optimal_cycles(own_s[0], work[0], rounds.main_hz)
    if policy(name).cycles == "even":
        server_hz = np.full(len(cuts), rounds.main_hz / len(cuts))
    speed, server_speed = draw.cpu_hz * world.fleet.flops_per_cycle, server_hz * world.servers.flops_per_cycle
    times = phases(world.cost, cuts, config.train.batch_size, speed, server_speed, draw.rates)
    return _clients(cuts, server_hz, times, num_batches, None)


def _clients(
    cuts: Array, server_hz: Array, times: Phases, num_batches: Array, answer: Allocation | None
) -> list[ClientPlan]:
    plans = []
    for k, cut in enumerate(cuts):
        spent = {name: float(num_batches[k] * getattr(times, f"{name}_s")[k]) for name in BATCH_PHASES}
        spent |= {name: float(getattr(times, f"{name}_s")[k]) for name in ("model_up", "model_down")}
        bottleneck = max(spent, key=lambda name: spent[name])
        plans.append(
            ClientPlan(k, int(cut), float(server_hz[k]), **_radio(answer, k), seconds=spent, bottleneck=bottleneck)
        )
    return plans


def _radio(answer: Allocation | None, k: int) -> dict[str, Any]:
    """Band and powers of client k; all None where there is no radio."""
    if answer is None:
        return dict.fromkeys(("subchannels", "share", *POWERS))
    return {
        "subchannels": None if answer.owner is None else np.flatnonzero(answer.owner == k).tolist(),
        "share": None if answer.share is None else answer.share[k].tolist(),
        **{name: float(getattr(answer, name)[k].sum()) for name in POWERS},
    }


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
