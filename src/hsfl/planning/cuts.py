"""The cut of each client: given, as deep as the client can hold, or searched under the even allocation or a policy."""

import numpy as np

from hsfl.allocation.cuts.search import CutRequest, CutSettings, best_single_cut, search_cuts
from hsfl.codec_table import pair_text, read_pair
from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.framework_table import PROPOSED, method
from hsfl.network.clock import timeline
from hsfl.network.devices import MANY_CLIENTS, Fleet
from hsfl.network.even_allocation import even_phases, psl_batch_sizes
from hsfl.network.latency import Phases, client_round_s, round_s
from hsfl.planning.large_fleet_cuts import own_fastest_cuts
from hsfl.planning.rounds.allocators import Even, Job, own_policy
from hsfl.planning.rounds.cpsl_policy import choose_clusters, plans_one_cut
from hsfl.planning.rounds.measured_queue import divides_server, queued_rounds
from hsfl.planning.rounds.participation import CutTask, is_crowd
from hsfl.planning.world import World, sample_draws

Array = np.ndarray
SAMPLES = 50  # rounds that a search averages over; they are drawn apart from the rounds of the run
SAMPLES_IN_TURNS = 10  # the same where clients take turns, whose rounds are made step by step


def choose_cuts(task: CutTask) -> tuple[tuple[int, ...], str | None]:
    """The row of the cost table of each client [K], as `fleet.cuts` asks, and what to say of a search that its time limit stopped. A row is a cut,
    or a cut with its codec where `link.allowed` has several.

    Nothing is searched for a framework that would not look at it.
    """
    config, world, asked = task.config, task.world, task.config.fleet.cuts
    check_codecs(config, world)
    if not isinstance(asked, str):
        return given_rows(config, world, check_cuts("fleet.cuts", asked, config.fleet.min_cut, world)), None
    if asked == "max_cut" or not looks_at_cuts(config):
        return given_rows(config, world, tuple(world.fleet.max_cut.tolist())), None
    if asked == "fastest" or own_policy(config.allocation.policy, config.framework) == "even":
        return fastest_cuts(task), None
    from hsfl.planning.policy_cuts import policy_cuts  # here, because compiling takes seconds

    return policy_cuts(task)


def given_rows(config: RunConfig, world: World, cuts: tuple[int, ...]) -> tuple[int, ...]:
    """The rows of given cuts [K], with the codecs that `link.codecs` gives."""
    codecs = config.link.codecs
    if codecs is None:
        return cuts
    if len(codecs) != len(cuts):
        raise InputError(f"link.codecs has {len(codecs)} entries but there are {len(cuts)} clients; give one for each")
    texts = tuple(pair_text(read_pair("link.codecs", text)) for text in codecs)
    return tuple(world.rows_of(cuts, texts).tolist())


def check_codecs(config: RunConfig, world: World) -> None:
    """Refuse several codecs where clients cannot have different ones, or nobody chooses them with cuts."""
    row, given = method(config.framework), config.link.codecs is not None
    allowed = (
        "link.codecs gives each client its codec but"
        if given
        else f"link.allowed has {len(world.codecs)} codecs to choose from but"
    )
    is_cut = not isinstance(config.fleet.cuts, str) or config.fleet.cuts == "max_cut"
    if given and not is_cut:
        raise InputError(f"{allowed} fleet.cuts is {config.fleet.cuts!r}; give the cuts, too, or set link.allowed")
    if world.cost.num_blocks == 1:
        return
    if not (row.own_cuts and row.copy_per_client):
        raise InputError(
            f"{allowed} framework {config.framework} has one cut for all; allow one codec, or set link.allowed for hsfl alone"
        )
    if is_cut and not given:
        raise InputError(f"{allowed} fleet.cuts gives the cuts; set fleet.cuts=planned, or allow one codec")
    if is_crowd(world):
        raise InputError(f"{allowed} large fleets and several cells have one codec for all; allow one codec")


def looks_at_cuts(config: RunConfig) -> bool:
    """Whether clients, or CPSL's clusters, have cuts of their own; else one cut for all, or none, decides (`choose_one_cut`)."""
    row = method(config.framework)
    by_cluster = row.timing.turns == "clusters" and config.options.cpsl.cut == "cluster"
    return row.own_cuts or by_cluster or not row.built_in


def planned_framework(config: RunConfig) -> str:
    """The framework that a plan is for: the config's where its clients have cuts and copies of their own, as in HSFL; else HSFL."""
    row = method(config.framework)
    return config.framework if row.own_cuts and row.copy_per_client and row.timeline is None else PROPOSED


def check_cuts(name: str, value: int | tuple[int, ...], min_cut: int, world: World) -> tuple[int, ...]:
    """The cut of each client [K], from one number or one for each; an error where a client may not or cannot hold its cut."""
    cuts = cut_for_each(name, value, world.fleet.num_clients, world.cost.num_units)
    bad = (np.array(cuts) < min_cut) | (np.array(cuts) > world.fleet.max_cut)
    if bad.any():
        k = int(bad.argmax())
        _check_cut(f"{name}[{k}]", cuts[k], min_cut, world.fleet, k)
    return cuts


def choose_one_cut(task: CutTask, cuts: tuple[int, ...]) -> int:
    """The cut of frameworks that have one cut for all clients, as `fleet.one_cut` asks. cuts: [K], of which frameworks with cuts of
    their own, which ask for none, take the smallest."""
    config, world = task.config.fleet, task.world
    shallowest = int(world.fleet.max_cut.argmin())
    if config.one_cut == "fastest":
        return fastest_one_cut(task)
    if config.one_cut == "max_cut":
        return int(world.fleet.max_cut[shallowest])
    if config.one_cut == "auto":
        return min(cuts)
    (cut,) = cut_for_each("fleet.one_cut", config.one_cut, 1, world.cost.num_units)
    _check_cut("fleet.one_cut", cut, config.min_cut, world.fleet, shallowest)
    return cut


def _check_cut(name: str, cut: int, min_cut: int, fleet: Fleet, k: int) -> None:
    if cut < min_cut:
        raise InputError(f"{name} is {cut}, below fleet.min_cut = {min_cut}; raise it, or lower min_cut")
    if cut > fleet.max_cut[k]:
        raise InputError(
            f"{name} is {cut} but max_cut of client {k} is {fleet.max_cut[k]}; lower the cut, or raise fleet.max_cut"
        )


def cut_for_each(name: str, value: int | tuple[int, ...], num_clients: int, num_units: int) -> tuple[int, ...]:
    """A cut for each client, from one number or a list; an error where the model has no such cut. name: the setting, for the error."""
    cuts = (value,) * num_clients if isinstance(value, int) else value
    if len(cuts) != num_clients:
        raise InputError(
            f"{name} has {len(cuts)} numbers but there are {num_clients} clients; give one number or one each"
        )
    bad = (np.array(cuts) < 0) | (np.array(cuts) > num_units)
    if bad.any():
        k = int(bad.argmax())
        where = name if num_clients == 1 else f"{name}[{k}]"
        word = "fastest" if name == "fleet.one_cut" else "max_cut"
        raise InputError(
            f"{where} is {cuts[k]} but the model has {num_units} units; choose up to {num_units}, or set {name}={word}"
        )
    return cuts


def fastest_cuts(task: CutTask) -> tuple[int, ...]:
    """Cuts with a short mean round, max(own work) + max(download), under the even allocation.

    Under the even allocation a client's seconds do not depend on the cuts of other clients, so they are computed once for
    every cut. The descent starts from one cut for all, and from each client's own fastest cut; one client after another takes
    its best cut until no client gains. The best of these descents counts. In a crowd each client takes its own fastest cut, among as
    many clients as a sampled round has.
    """
    world, num_batches, fleet = task.world, task.num_batches, task.world.fleet
    if fleet.num_clients > MANY_CLIENTS:
        return tuple(own_fastest_cuts(task).tolist())
    if world.servers.service is not None and divides_server(task.config):
        return tuple(search_cuts(_queued_request(task)).cuts.tolist())
    options = np.flatnonzero(task.rows.any(axis=0))
    times = [_phases(world, np.full(fleet.num_clients, cut), task.batch_size) for cut in options]
    own_s = np.stack([client_round_s(phases_at_cut, num_batches) for phases_at_cut in times])  # [C, S, K]
    down_s = np.stack([phases_at_cut.model_down_s for phases_at_cut in times])
    holds = task.rows.T[options]  # [C, K]
    own_s = np.where(holds[:, None], own_s, np.inf)
    held = np.maximum.accumulate(np.where(holds, np.arange(len(options))[:, None], -1), axis=0)
    starts = [np.where(places >= 0, places, holds.argmax(axis=0)) for places in held]
    starts.append((own_s + down_s).mean(axis=1).argmin(axis=0))
    descents = [_descend(own_s, down_s, start) for start in starts]
    best = min(descents, key=lambda places: _mean_round_s(own_s, down_s, places))
    return tuple(options[best].tolist())


def _mean_round_s(own_s: Array, down_s: Array, places: Array) -> float:
    """The mean round over S samples. own_s, down_s: [C, S, K]. places: [K], each client's place among the C cuts."""
    everyone = np.arange(len(places))
    return float((own_s[places, :, everyone].max(axis=0) + down_s[places, :, everyone].max(axis=0)).mean())


def _descend(own_s: Array, down_s: Array, start: Array) -> Array:
    """Coordinate descent. Only clients that finish last in some sample are tried: no other client can shorten a round alone."""
    places, best_s = start.copy(), np.inf
    everyone = np.arange(len(places))
    while (mean_round_s := _mean_round_s(own_s, down_s, places)) < best_s * (1 - 1e-9):
        best_s = mean_round_s
        work_s, load_s = own_s[places, :, everyone], down_s[places, :, everyone]  # [K, S]
        for k in np.unique([work_s.argmax(axis=0), load_s.argmax(axis=0)]):
            others = everyone != k
            busy_s, last_s = (others_s.max(axis=0, initial=0.0, where=others[:, None]) for others_s in (work_s, load_s))
            mean_s = (np.maximum(busy_s, own_s[:, :, k]) + np.maximum(last_s, down_s[:, :, k])).mean(axis=1)
            if mean_s.min() < mean_s[places[k]] * (1 - 1e-12):
                places[k] = mean_s.argmin()
                work_s[k], load_s[k] = own_s[places[k], :, k], down_s[places[k], :, k]
    return places


def fastest_one_cut(task: CutTask) -> int:
    """The one cut for all with the shortest mean round of the framework, under the allocation that it has."""
    config, world, row = task.config, task.world, method(task.config.framework)
    deepest = int(world.fleet.max_cut.min())
    cuts = range(min(config.fleet.min_cut, deepest), deepest + 1)
    if row.timing.cut != "any" or plans_one_cut(config):  # it has none, or chooses it when its clusters are known
        return deepest
    is_optimised = row.copy_per_client and own_policy(config.allocation.policy, config.framework) != "even"
    if is_optimised and not is_crowd(world):
        from hsfl.planning.policy_cuts import cut_request  # here, because compiling takes seconds

        return int(best_single_cut(cut_request(task, threads=2)).cuts[0])
    if world.servers.service is not None and divides_server(config):
        return int(best_single_cut(_queued_request(task)).cuts[0])
    mean_s = _mean_together_s if row.copy_per_client else _mean_in_turns_s
    return min(cuts, key=lambda cut: mean_s(task, np.full(world.fleet.num_clients, cut)))


def _queued_request(task: CutTask) -> CutRequest:
    """A search on a main server that is one queue, from each client's fastest cut if nobody waited for anybody."""
    rounds = queued_rounds(task, sample_draws(task.world, SAMPLES))
    alone_s = (
        task.num_batches[:, None] * (rounds.before_s + rounds.serve_s + rounds.after_s) + rounds.up_s + rounds.down_s
    )
    start = np.where(task.rows, alone_s.mean(axis=0), np.inf).argmin(axis=1)
    how = CutSettings(seed=task.world.seed, time_limit_s=task.config.allocation.plan_time_limit_s)
    return CutRequest(task.rows, rounds, how, start)


def _mean_together_s(task: CutTask, cuts: Array) -> float:
    """The mean round of a framework whose clients work side by side until the round's end, under the even allocation. cuts: [K]."""
    phases = _phases(task.world, cuts, task.batch_size, task.config.framework)
    return float(round_s(phases, task.num_batches).mean())


def _mean_in_turns_s(task: CutTask, cuts: Array) -> float:
    """The mean round of a framework whose clients take turns or steps together, which have the whole band and server. cuts: [K]."""
    config, world, num_batches = task.config, task.world, task.num_batches
    batch_size: Array | int = task.batch_size
    clusters = None
    if method(config.framework).timing.batches == "proportional":
        batch_size, num_batches = psl_batch_sizes(num_batches, task.batch_size), np.full(len(cuts), num_batches.mean())
    if method(config.framework).timing.turns == "clusters":
        clusters = choose_clusters(config, world, int(world.fleet.max_cut.min()), task.num_batches * task.batch_size)
    job = Job(config, world, cuts, batch_size, num_batches, clusters=clusters)
    draws, everyone = sample_draws(world, SAMPLES_IN_TURNS), np.ones(len(cuts), bool)
    rounds = (draws.sample(index) for index in range(min(len(draws.cpu_hz), SAMPLES_IN_TURNS)))
    timelines = (
        timeline(config.framework, Even().allocate(job, draw, everyone).phases, num_batches, clusters=clusters)
        for draw in rounds
    )
    return float(np.mean([of_round.round_s for of_round in timelines]))


def _phases(world: World, cuts: Array, batch_size: int, framework: str = PROPOSED) -> Phases:
    draws = sample_draws(world, SAMPLES)
    return even_phases(framework, world.cost, cuts, batch_size, world.fleet, world.servers, world.links, draws)
