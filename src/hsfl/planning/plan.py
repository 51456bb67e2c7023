"""`hsfl plan`: the cut of each client, what the client gets and what holds it up, and how long the baselines would take.

A plan is made from a cost table, without torch.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hsfl.allocation.answer import Allocation, phases_of
from hsfl.allocation.cut_methods import CutSettings, OnProgress
from hsfl.allocation.cuts import LEAST_S
from hsfl.allocation.measured import optimal_cycles
from hsfl.allocation.measured_cuts import MeasuredRounds
from hsfl.allocation.policies import Policy, policy
from hsfl.allocation.scenario import Scenario
from hsfl.allocation.solving import TimeLimit
from hsfl.config import AllocationConfig, RunConfig
from hsfl.formats import seconds
from hsfl.network.channel import Measured, RoundDraw
from hsfl.network.latency import Phases, phases
from hsfl.planning.described import fleet_notes
from hsfl.planning.measured_links import measured_rounds, ruled_cuts
from hsfl.planning.optimised import limit_note, plan_cuts, samples
from hsfl.planning.resources import POWERS
from hsfl.planning.straggler import Held, Why, why_planned
from hsfl.planning.world import World, count_batches, sample_draws

Array = np.ndarray
BASELINES = ("proposed", "rcls", "scls", "ecfa", "gtra", "etra", "even")
MEASURED_BASELINES = ("proposed", "rcls", "scls", "ecfa")  # no subchannels and no power, so even is ecfa
OTHER_CUTS_S = 10.0  # of real time
BATCH_PHASES = ("client", "smashed", "server", "gradient")


@dataclass(frozen=True)
class ClientPlan:
    """One client in the first sample. A power is the sum over the client's subchannels; None where links are measured."""

    client: int
    cut: int
    server_hz: float
    subchannels: list[int] | None  # that the client owns; None where bands are shared or links are measured
    share: list[float] | None  # of each subchannel, where bands are shared
    main_up_power_w: float | None
    main_down_power_w: float | None
    edge_up_power_w: float | None
    edge_down_power_w: float | None
    seconds: dict[str, float]  # of each phase over the round
    bottleneck: str  # the longest phase
    weight: float | None  # how much of the round hangs on this client (they sum to 1); None unless cycles are optimal
    name: str = ""  # of its device; without one, `client 3`


@dataclass(frozen=True)
class Plan:
    """The answer of `hsfl plan`."""

    policy: str
    cuts: list[int]  # [K]
    round_s: float  # mean over the samples
    lower_bound_s: float  # no cuts and no allocation can beat it, on these samples
    gap: float
    clients: list[ClientPlan]
    baselines_s: dict[str, float]  # mean round on the same samples, by policy
    num_samples: int
    seconds: float  # the search
    notes: list[str]  # settings that a plan leaves aside, and warnings
    why: dict[str, Any] | None = None  # the client on which the round hangs most (planning.straggler.Why)


def make_plan(config: RunConfig, world: World, num_samples: Array, progress: OnProgress | None = None) -> Plan:
    """The cuts that are proposed or that the policy's rule gives, the allocation of the first sample, and the mean round of all
    policies over the samples. num_samples: [K] training samples of each client."""
    num_batches = count_batches(config, num_samples)
    name = config.allocation.policy
    name = "proposed" if name in ("even", "own") else name  # even plans nothing, and HSFL's own is proposed
    chosen, settings = policy(name, config.options), config.allocation.model_copy(update={"policy": "proposed"})
    batch_size, min_cut = config.train.batch_size, config.fleet.min_cut
    proposed = plan_cuts(world, settings, batch_size, num_batches, min_cut, progress)
    if isinstance(world.links, Measured):
        draws = sample_draws(world, settings.samples).sample(slice(settings.samples))
        every, chosen = measured_rounds(world, draws, batch_size, num_batches, min_cut), chosen.with_radio()
        cuts = proposed.cuts if chosen.cuts == "optimised" else ruled_cuts(chosen, every, world.seed)
        first = draws.sample(0)
        clients = _measured_clients(config, chosen, world, cuts, every, first, num_batches)
        means = _measured_means(name, proposed.cuts, every, world.seed)

        def mean_s(tried: Array) -> float:
            return float((every.even_round_s if chosen.cycles == "even" else every.round_s)(tried).mean())
    else:
        rounds = samples(world, settings, batch_size, num_batches, min_cut)
        cuts = proposed.cuts if chosen.cuts == "optimised" else chosen.choose(rounds, CutSettings(seed=world.seed))
        answer = chosen.allocate(rounds[0], cuts, settings.gap, settings.time_limit_s)
        times = phases_of(rounds[0], answer)
        optimal = chosen.cycles == "optimal" and chosen.allocator is None
        clients = _clients(cuts, answer.server_hz, times, num_batches, answer, optimal)
        means = _means(chosen, proposed.cuts, rounds, settings, world.seed)
        first = sample_draws(world, settings.samples).sample(0)

        def mean_s(tried: Array) -> float:
            answers = (chosen.allocate(r, tried, settings.gap, settings.time_limit_s) for r in rounds)
            return float(np.mean([answer.round_s for answer in answers]))

    clients = [replace(client, name=world.fleet.name(client.client)) for client in clients]
    hangs = _why(world, clients, first, batch_size * num_batches, np.asarray(cuts), min_cut, mean_s)
    round_s, bound_s = means[name], min(proposed.lower_bound_s, means[name])
    return Plan(
        policy=name,
        cuts=[int(cut) for cut in cuts],
        round_s=round_s,
        lower_bound_s=bound_s,
        gap=(round_s - bound_s) / round_s if round_s > 0 else 0.0,
        clients=clients,
        baselines_s=means,
        num_samples=len(proposed.round_s),
        seconds=proposed.seconds,
        notes=[*_notes(config, clients), *([note] if (note := limit_note(settings, proposed)) else [])],
        why=hangs.record(),
    )


def _why(
    world: World,
    clients: list[ClientPlan],
    draw: RoundDraw,
    num_samples: Array,
    cuts: Array,
    min_cut: int,
    mean_s: Callable[[Array], float],
) -> Why:
    """What holds up the client with the most weight, or the last to end; its other cuts are tried on all samples while that
    takes no longer than OTHER_CUTS_S."""
    one, hangs = _most_pressed(clients)
    k, cost = one.client, world.cost
    held = Held.planned(one.seconds, cost, one.cut, float(num_samples[k]))
    gain = {"smashed": draw.main_gain, "gradient": draw.main_gain, "model_up": draw.edge_gain}.get(held.phase)
    owned = None if gain is None else gain[k] if one.subchannels is None else gain[k][one.subchannels]
    others = [cut for cut in range(min_cut, int(min(world.fleet.max_cut[k], cost.num_units)) + 1) if cut != one.cut]
    began, now_s, rounds = time.monotonic(), mean_s(cuts), {}
    for cut in sorted(others, key=lambda cut: abs(cut - one.cut)):
        if time.monotonic() - began > OTHER_CUTS_S:
            break
        rounds[cut] = mean_s(np.where(np.arange(len(cuts)) == k, cut, cuts))
    return why_planned(k, f"{one.name} (cut {one.cut}) {hangs}", held, owned, now_s, rounds)


def _most_pressed(clients: list[ClientPlan]) -> tuple[ClientPlan, str]:
    """The client with the most weight; without weights, of those that end last the one with most to do apart from the server's
    work. And how to say it."""
    if all(client.weight is not None for client in clients):
        one = max(clients, key=lambda client: client.weight or 0.0)
        return one, f"has most weight ({one.weight:.0%})"
    ends_s = {client.client: sum(client.seconds.values()) - client.seconds["model_down"] for client in clients}
    last = [client for client in clients if ends_s[client.client] >= (1 - 1e-6) * max(ends_s.values())]
    one = max(last, key=lambda client: ends_s[client.client] - client.seconds["server"])
    others = len(last) - 1
    beside = f", with {others} other{'s' if others > 1 else ''}, and takes longest apart from the server's work"
    return one, "ends last" + (beside if others else "")


def _notes(config: RunConfig, clients: list[ClientPlan]) -> list[str]:
    notes = fleet_notes(config)
    if config.fleet.cuts not in ("max_cut", "planned"):
        notes.append("fleet.cuts is not used: a plan chooses the cuts")
    longest_s = max(sum(client.seconds.values()) - client.seconds["model_down"] for client in clients)
    tau_s = config.train.tau_s
    if tau_s is not None and longest_s > tau_s:
        notes.append(
            f"training takes {seconds(longest_s, 4)} in the first sample, longer than train.tau_s = {tau_s:g}: a run will leave "
            "clients out until the others can keep it"
        )
    return notes


def _means(
    chosen: Policy, proposed: Array, rounds: list[Scenario], settings: AllocationConfig, seed: int
) -> dict[str, float]:
    """The mean round of each policy in seconds; a policy without a rule for cuts takes the proposed cuts.

    All of them together take about as long as the search for cuts may: every round has an equal part of the time that is left.
    """
    rules = [chosen if one == chosen.name else policy(one) for one in dict.fromkeys((*BASELINES, chosen.name))]
    if rounds[0].sharing == "bandwidth":
        rules = [rule for rule in rules if rule.subchannels != "greedy"]
    clock, num_left, means = TimeLimit(settings.plan_time_limit_s), len(rules) * len(rounds), {}
    for rule in rules:
        cuts = proposed if rule.cuts == "optimised" else rule.choose(rounds, CutSettings(seed=seed))
        round_s = []
        for each in rounds:
            limit_s = min(settings.time_limit_s, max(LEAST_S, clock.left_s() / num_left))
            round_s.append(rule.allocate(each, cuts, settings.gap, limit_s).round_s)
            num_left -= 1
        means[rule.name] = float(np.mean(round_s))
    if means["even"] == means["ecfa"]:
        del means["even"]  # the same, shown once
    return means


def _measured_means(name: str, proposed: Array, rounds: MeasuredRounds, seed: int) -> dict[str, float]:
    means = {}
    for one in dict.fromkeys((*MEASURED_BASELINES, name)):
        rule = policy(one)
        cuts = proposed if rule.cuts == "optimised" else ruled_cuts(rule, rounds, seed)
        round_s = rounds.even_round_s(cuts) if rule.cycles == "even" else rounds.round_s(cuts)
        means[one] = float(round_s.mean())
    return means


def _measured_clients(
    config: RunConfig,
    rule: Policy,
    world: World,
    cuts: Array,
    rounds: MeasuredRounds,
    draw: RoundDraw,
    num_batches: Array,
) -> list[ClientPlan]:
    """The clients in the first sample, which is `draw`, with the cycles that the policy gives them."""
    assert draw.rates is not None, "measured links draw rates"
    own_s, work, _ = rounds.at(cuts)
    server_hz = optimal_cycles(own_s[0], work[0], rounds.main_hz)
    if rule.cycles == "even":
        server_hz = np.full(len(cuts), rounds.main_hz / len(cuts))
    speed, server_speed = draw.cpu_hz * world.fleet.flops_per_cycle, server_hz * world.servers.flops_per_cycle
    times = phases(world.cost, cuts, config.train.batch_size, speed, server_speed, draw.rates)
    return _clients(cuts, server_hz, times, num_batches, None, rule.cycles == "optimal")


def _clients(
    cuts: Array, server_hz: Array, times: Phases, num_batches: Array, answer: Allocation | None, optimal: bool
) -> list[ClientPlan]:
    plans, weights = [], _weights(server_hz, num_batches * times.server_s) if optimal else None
    for k, cut in enumerate(cuts):
        spent = {name: float(num_batches[k] * getattr(times, f"{name}_s")[k]) for name in BATCH_PHASES}
        spent |= {name: float(getattr(times, f"{name}_s")[k]) for name in ("model_up", "model_down")}
        bottleneck = max(spent, key=lambda name: spent[name])
        weight = None if weights is None else float(weights[k])
        plans.append(
            ClientPlan(
                k,
                int(cut),
                float(server_hz[k]),
                **_radio(answer, k),
                seconds=spent,
                bottleneck=bottleneck,
                weight=weight,
            )
        )
    return plans


def _weights(server_hz: Array, server_s: Array) -> Array | None:
    """How much of the round hangs on each client, [K], sum 1: the multipliers of the deadlines. At the optimum a second less for
    client k frees f_k^2 / n_k = f_k / server_s cycles."""
    if not ((server_hz > 0) & (server_s > 0)).all():
        return None  # someone's deadline has no such price
    freed = server_hz / server_s
    return freed / freed.sum()


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

    The device has cpu (cycles per second) or compute (FLOPs per second), memory (bits), up and down (bits per second); of the main server it gets the
    even share of `fleet.num_clients` clients.
    """
    cost, servers = world.cost, world.servers
    hz = servers.main_hz / config.fleet.num_clients * servers.flops_per_cycle
    speed = device["compute"] if "compute" in device else device["cpu"] * config.fleet.flops_per_cycle
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
