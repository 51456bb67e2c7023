"""`hsfl plan`: the cut of each client, what the client gets and what holds it up, and how long the baselines would take.

A plan is made from a cost table, without torch. Fleets of many clients or several cells have a plan without a row for each
client (`plan_large`); `device_table` is the plan of a single device.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hsfl.allocation.cuts.search import OnProgress, ignore_progress
from hsfl.allocation.policies import Policy, policy
from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.formats import percent, seconds
from hsfl.framework_table import AT_MODELS_END, AT_ONE_CUT, PROPOSED
from hsfl.network.clock import Why
from hsfl.planning.coded_cost import link_notes
from hsfl.planning.cuts import check_codecs, choose_cuts, given_rows, planned_framework
from hsfl.planning.fair_defaults import alike_words
from hsfl.planning.fleet_from_file import fleet_notes
from hsfl.planning.plans.plan_large import CrowdSamples, PlanCrowd, crowd_notes
from hsfl.planning.plans.plan_rounds import ClientPlan, PlanRounds, PlanTask, plan_rounds
from hsfl.planning.plans.single_cut import SingleCut, single_rows, try_single_rows
from hsfl.planning.plans.unit_slips import unit_note
from hsfl.planning.policy_cuts import cut_request, limit_note
from hsfl.planning.rounds.allocators import own_policy
from hsfl.planning.rounds.measured_queue import end_of_plan
from hsfl.planning.rounds.participation import CutTask, is_crowd
from hsfl.planning.rounds.round_clock import Extras
from hsfl.planning.rounds.straggler import explain_straggler, holding_up, longest_phase, work_of
from hsfl.planning.world import World, count_batches

Array = np.ndarray
MOST_TOLD = 20  # cuts in a note
OTHER_CUTS_S = 10.0  # real seconds in which other cuts of one client are tried
NO_EXTRAS = Extras()


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
    search_s: float  # real time, to choose the cuts
    notes: list[str]  # settings that a plan leaves aside, and warnings
    why: Why | None = (
        None  # the client on which the round hangs most; of a crowd, the straggler of the last sampled round
    )
    other_cut: int | None = None  # the best other cut of this client; None where no other was tried
    other_round_s: float | None = None  # mean round with the other cut
    assumed: list[str] = field(default_factory=list)  # sentences: what the plan takes for granted
    ending_s: dict[str, float] = field(default_factory=dict)  # of each part of the round's end, a part of round_s
    crowd: PlanCrowd | None = (
        None  # of many clients or several cells: then `clients` is empty, and the bound is for these cuts
    )
    codecs: list[str] | None = None  # [K] of smashed data and gradients, where clients have different ones
    single: SingleCut | None = None  # one cut for all; None where there is one client, or no cut that all may have


def _planned_policy(config: RunConfig) -> str:
    """The policy to plan for: that of the config, where somebody set it; else the proposed one, which is HSFL's own."""
    return own_policy(config.allocation.policy, PROPOSED)


def make_plan(
    config: RunConfig,
    world: World,
    num_samples: Array,
    progress: OnProgress | None = None,
    extras: Extras = NO_EXTRAS,
) -> Plan:
    """The cuts that are proposed or that the policy's rule gives, the allocation of the first sample, and the mean round of all
    policies over the samples.

    num_samples: [K] training samples of each client. extras: what the planned framework sends and trains besides HSFL's round.
    """
    world = extras.charged(world)
    if is_crowd(world):
        return _plan_crowd(config, world, num_samples, progress, extras.passes)
    _check_sharing(config, world)
    num_batches, name = extras.passes * count_batches(config, num_samples), _planned_policy(config)
    task = CutTask(config, world, num_batches)
    given = _given_cuts(task)
    request = cut_request(task, on_progress=progress or ignore_progress, threads=2)
    proposed, chosen = policy("proposed").choose(request), policy(name, config.options)
    rounds = plan_rounds(PlanTask(task, request, chosen, proposed.cuts, given))
    clients = [replace(client, name=world.fleet.name(client.client)) for client in rounds.clients(rounds.cuts)]
    codecs = list(world.codecs_of(rounds.cuts))
    means = rounds.baselines_s()
    pressed = _most_pressed(clients)
    work = work_of(world.cost, pressed.cut, float(task.batch_size * task.num_batches[pressed.client]))
    other_cut, other_round_s = _best_other_cut(task, pressed, rounds)
    round_s = means[name] if given is None else rounds.mean_s(given)
    bound_s = min(proposed.lower_bound_s, round_s)
    single = _single_cut(world, task.rows, rounds.cuts, round_s, bound_s, rounds.mean_s)
    spent_s = {phase: pressed.seconds[phase] for phase in holding_up(world)}
    why = longest_phase(pressed.client, spent_s, work, spent_s)
    ending_s = end_of_plan(task, rounds.cuts)
    notes = [
        *_notes(config, clients),
        limit_note(config.allocation, proposed),
        _one_cut_note(task, rounds, chosen)
        if given is None
        else _given_note(world, given, round_s, proposed.cuts, means["proposed"]),
        unit_note(config, round_s, why),
        _ending_note(ending_s),
    ]
    return Plan(
        policy=name,
        cuts=world.cost.cuts_of(rounds.cuts).tolist(),
        round_s=round_s,
        lower_bound_s=bound_s,
        gap=(round_s - bound_s) / round_s if round_s > 0 else 0.0,
        clients=_as_told(world, clients, codecs),
        baselines_s=means,
        num_samples=len(proposed.round_s),
        search_s=proposed.seconds,
        notes=[note for note in notes if note],
        why=why,
        other_cut=other_cut,
        other_round_s=other_round_s,
        ending_s=ending_s,
        codecs=codecs or None,
        single=single,
    )


def _as_told(world: World, clients: list[ClientPlan], codecs: list[str]) -> list[ClientPlan]:
    """The clients with cuts and codecs in place of rows of the cost table."""
    cuts = world.cost.cuts_of(np.array([client.cut for client in clients])).tolist()
    return [
        replace(client, cut=cut, codec=codecs[client.client] if codecs else None) for client, cut in zip(clients, cuts)
    ]


def _given_cuts(task: CutTask) -> Array | None:
    """The rows [K] that the config gives; None where they are to be found."""
    check_codecs(task.config, task.world)
    asked = task.config.fleet.cuts
    if asked == "max_cut":
        deepest = np.minimum(task.world.fleet.max_cut, task.world.cost.num_units)
        return np.array(given_rows(task.config, task.world, tuple(deepest.tolist())))
    return None if isinstance(asked, str) else np.array(choose_cuts(task)[0])


def _given_note(world: World, given: Array, round_s: float, proposed: Array, proposed_s: float) -> str:
    """What the planner would do instead of cuts that the config gives."""
    if (given == proposed).all():
        return "fleet.cuts gives these cuts; the planner would choose the same"
    words = map(
        " ".join,
        zip(map(str, world.cost.cuts_of(proposed).tolist()), world.codecs_of(proposed) or [""] * len(proposed)),
    )
    cuts = " ".join(word.strip() for word in words) if len(proposed) <= MOST_TOLD else "others"
    return (
        f"fleet.cuts gives these cuts; the planner would choose {cuts}, with a mean round of {seconds(proposed_s, 4)} "
        f"({percent(proposed_s / round_s - 1, 1, sign=True)}) under the policy proposed"
    )


def _ending_note(ending_s: dict[str, float]) -> str | None:
    """How long the servers take to end a round."""
    if not ending_s:
        return None
    parts = ", ".join(f"{name} {seconds(part_s, 3)}" for name, part_s in ending_s.items())
    return f"the end of a round takes {seconds(sum(ending_s.values()), 3)} of it: {parts}"


def _check_sharing(config: RunConfig, world: World) -> None:
    """Refuse exclusive subchannels where there are more clients than subchannels. `Scenario.checked` does the same;
    this error names the settings of a config."""
    subchannels = getattr(world.links, "num_subchannels", None)  # measured links have none
    num_clients = world.fleet.num_clients
    if config.allocation.sharing == "exclusive" and subchannels is not None and num_clients > subchannels:
        raise InputError(
            f'allocation.sharing is "exclusive" but {num_clients} clients (fleet.num_clients) share {subchannels} '
            'subchannels (network.num_subchannels); set allocation.sharing to "bandwidth" or give more subchannels'
        )


def _plan_crowd(config: RunConfig, world: World, num_samples: Array, progress: OnProgress | None, passes: int) -> Plan:
    """The plan of many clients or several cells. Every policy is timed with the cuts that a run plans for it."""
    config_as_hsfl, name = config.model_copy(update={"framework": planned_framework(config)}), _planned_policy(config)
    samples = CrowdSamples(config, world, num_samples, passes)
    rounds_under = {
        policy_name: samples.under(config_as_hsfl, policy_name, progress)
        for policy_name in dict.fromkeys((name, "proposed", "even"))
    }
    planned, means = (
        rounds_under[name],
        {policy_name: rounds_under[policy_name].mean_s for policy_name in dict.fromkeys(("proposed", name, "even"))},
    )
    crowd = samples.record(planned)
    round_s, bound_s = planned.mean_s, float(np.mean(crowd.bounds_s))
    why = explain_straggler(planned.clock, len(samples.chosen) - 1, samples.chosen[-1])
    rows, as_planned = world.rows(config.fleet.min_cut), planned.clock.job.config
    single = _single_cut(
        world, rows, np.array(planned.cuts), round_s, None, lambda cuts: samples.at(as_planned, cuts).mean_s
    )
    notes = [
        *fleet_notes(config),
        *link_notes(config.link),
        *_other_run_note(config),
        *crowd_notes(config, crowd, planned.num_stopped),
        planned.note,
        unit_note(config, round_s, why),
    ]
    return Plan(
        policy=name,
        cuts=list(planned.cuts),
        round_s=round_s,
        lower_bound_s=bound_s,
        gap=(round_s - bound_s) / round_s if round_s > 0 else 0.0,
        clients=[],
        baselines_s=means,
        num_samples=len(planned.rounds),
        search_s=planned.search_s,
        notes=[note for note in notes if note],
        why=why,
        crowd=crowd,
        single=single,
    )


def _single_cut(
    world: World,
    rows: Array,
    planned: Array,
    round_s: float,
    bound_s: float | None,
    mean_s: Callable[[Array], float],
) -> SingleCut | None:
    """One cut for all beside the planned rows [K], whose mean round is round_s. rows: [K, C] bool. bound_s: on the mean round of any cuts; None
    where none is proven. mean_s: of rows [K], under the plan's policy."""
    legal = single_rows(rows)
    if len(planned) < 2 or not legal:
        return None
    tried = try_single_rows(rows, planned, mean_s)
    row = min(tried, key=lambda row: tried[row])
    return SingleCut(
        cut=int(world.cost.cuts_of(row)),
        codec=next(iter(world.codecs_of(np.array([row]))), None),
        round_s=tried[row],
        over_planned=tried[row] / round_s - 1 if round_s > 0 else 0.0,
        over_best=tried[row] / bound_s - 1 if bound_s else None,
        is_planned=bool((planned == row).all()),
        num_tried=len(tried),
        num_legal=len(legal),
    )


def _one_cut_note(task: CutTask, rounds: PlanRounds, chosen: Policy) -> str | None:
    """A note where all clients have the same cut: which rule gave the cut, or what the best other cut of one client would cost."""
    world, cuts, rows = task.world, rounds.cuts, task.rows
    if len(cuts) < 2 or len(set(cuts.tolist())) > 1:
        return None
    cut_of_all = int(world.cost.cuts_of(cuts[0]))
    same = AT_ONE_CUT if cut_of_all < world.cost.num_units else AT_MODELS_END
    opening = f"all clients have cut {cut_of_all}, so {alike_words(task.config, PROPOSED, same)}"
    if chosen.chooses_cuts:
        return f"{opening}: the rule of {chosen.name} gave everyone this cut, and no other was tried"
    moves = [
        (k, row)
        for row in (int(cuts[0]) - 1, int(cuts[0]) + 1)
        for k in range(len(cuts))
        if abs(int(world.cost.cuts_of(row)) - cut_of_all) == 1 and 0 <= row < rows.shape[1] and rows[k, row]
    ]
    if not moves:
        return f"{opening}: no client may have another cut (fleet.min_cut, fleet.max_cut)"
    began, tried, mean_s = time.monotonic(), {}, rounds.mean_s(cuts)
    for k, cut in moves:
        if time.monotonic() - began < OTHER_CUTS_S / 2:
            tried[k, cut] = rounds.mean_s(_moved(cuts, k, cut))
    k, cut = min(tried, key=lambda move: tried[move])
    name, longer = world.fleet.name(k), percent(tried[k, cut] / mean_s - 1, 2, sign=True)
    before, after = (rounds.clients(tried_cuts)[k].seconds for tried_cuts in (cuts, _moved(cuts, k, cut)))
    most = max(after, key=lambda phase: after[phase] - before[phase])
    slower = f"its {most.replace('_', ' ')} would take {seconds(after[most], 3)} instead of {seconds(before[most], 3)}"
    return f"{opening}: of all moves by one unit the best ({name} to cut {world.cost.cuts_of(cut)}) changes the mean round by {longer}; {slower}"


def _moved(cuts: Array, client: int, cut: int) -> Array:
    """The cuts [K] with another cut for one client."""
    return np.where(np.arange(len(cuts)) == client, cut, cuts)


def _best_other_cut(task: CutTask, pressed: ClientPlan, rounds: PlanRounds) -> tuple[int | None, float | None]:
    """The best cut besides the client's own, with the client's codec, and the mean round with it, of the cuts that can be tried in
    OTHER_CUTS_S."""
    cost, may_take = task.world.cost, np.flatnonzero(task.rows[pressed.client]).tolist()
    others = [row for row in may_take if row != pressed.cut and cost.blocks_of(row) == cost.blocks_of(pressed.cut)]
    began, tried = time.monotonic(), dict[int, float]()
    for cut in sorted(others, key=lambda cut: abs(cut - pressed.cut)):
        if time.monotonic() - began > OTHER_CUTS_S:
            break
        tried[cut] = rounds.mean_s(_moved(rounds.cuts, pressed.client, cut))
    if not tried:
        return None, None
    best = min(tried, key=lambda row: tried[row])
    return int(cost.cuts_of(best)), tried[best]


def _most_pressed(clients: list[ClientPlan]) -> ClientPlan:
    """The client with the most weight. Without weights it is the client that ends last; of several, the client with most to do
    apart from the server's work."""
    if all(client.weight is not None for client in clients):
        return max(clients, key=lambda client: client.weight or 0.0)
    last_s = max(client.ends_s for client in clients)
    last = [client for client in clients if client.ends_s >= (1 - 1e-6) * last_s]
    return max(last, key=lambda client: client.ends_s - client.seconds["server"])


def _notes(config: RunConfig, clients: list[ClientPlan]) -> list[str]:
    notes, train = [*fleet_notes(config), *link_notes(config.link), *_other_run_note(config)], config.train
    if train.clients_per_round is not None or train.drop_rate:
        notes.append(
            "a plan takes all clients to take part in every round, but train.clients_per_round or train.drop_rate leaves some "
            "out: a run's rounds will be shorter"
        )
    longest_s = max(client.ends_s for client in clients)
    tau_s = train.tau_s
    if tau_s is not None and longest_s > tau_s:
        notes.append(
            f"training takes {seconds(longest_s, 4)} in the first sample, longer than train.tau_s = {tau_s:g}: a run will leave "
            "clients out until the others can keep it"
        )
    return notes


def _other_run_note(config: RunConfig) -> list[str]:
    """Where `hsfl run` with the config would not do what is planned: in which settings, and the way to run the plan."""
    framework = planned_framework(config)
    as_hsfl = framework == config.framework
    cuts = config.fleet.cuts if config.fleet.cuts == "fastest" else "planned"  # given cuts are planned as they are
    policy = own_policy(config.allocation.policy, framework)
    rows = (
        ("framework", config.framework, framework),
        ("allocation.policy", policy, _planned_policy(config)),
        ("fleet.cuts", cuts, "planned"),
    )
    others = [(name, has, planned) for name, has, planned in rows if has != planned]
    if not others:
        return []
    present_values = " and ".join(
        f"{name} is {list(has) if isinstance(has, tuple) else has}" for name, has, _ in others
    )
    wanted = ", ".join(f"{name}={planned}" for name, _, planned in others)
    keep = "keep the plan with --out DIR and run it with --plan DIR, or " if as_hsfl else ""
    return [
        f"a run of this config is not the run that is planned, since its {present_values}; to run as planned, {keep}set {wanted}"
    ]


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
            "model_down": cost.down_bits[cut] / device["down"],
        }
        memory_bits = float(cost.memory_bits[cut]) if cost.memory_bits is not None else float(cost.model_bits[cut])
        fits = memory_bits <= device.get("memory", np.inf)
        times = {name: float(value) for name, value in spent.items()}
        rows.append(
            {"cut": cut, "fits": fits, "memory_bits": memory_bits, "seconds": times, "round_s": sum(times.values())}
        )
    possible = [row for row in rows if row["fits"]]
    return rows, min(possible, key=lambda row: float(row["round_s"]))["cut"] if possible else None
