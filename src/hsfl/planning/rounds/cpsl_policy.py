"""CPSL as its authors allocate it (Wu et al., arXiv:2204.08119): which clients form a cluster, one cut for all, and which client
of a cluster gets which subchannel. The training itself is `frameworks.cpsl`.

Clusters of clients take turns. A turn has all of the band and the whole main server. Within a turn, every member gets its best
free subchannel; then every further subchannel goes to the member for whom it shortens the turn most. Clients send with all
their power, the servers' power is divided evenly among members, and both are water-filled, so that one more subchannel never
hurts. Where links are measured there is nothing to deal.

Legend: K clients, n members of a turn, I subchannels.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.framework_table import method
from hsfl.network.channel import Ofdma, RoundDraw
from hsfl.network.clock import timeline
from hsfl.network.clusters import gibbs_clusters, random_clusters
from hsfl.network.even_allocation import even_phases
from hsfl.network.in_step_times import BATCH_PHASES, run_steps
from hsfl.network.latency import LN2, Phases, Rates, duration_s, phases
from hsfl.planning.rounds.allocators import Allotment, Even, Job, own_policy
from hsfl.planning.world import World, count_batches, sample_draws
from hsfl.rng import stream

Array = np.ndarray
TURNS = "cpsl"  # the policy for clusters that take turns
SMASHED, GRADIENT = BATCH_PHASES.index("smashed"), BATCH_PHASES.index("gradient")


def takes_turns(config: RunConfig) -> bool:
    """Whether CPSL's policy allocates: the config chooses it, and the framework's clusters take turns."""
    policy = own_policy(config.allocation.policy, config.framework)
    return policy == TURNS and method(config.framework).timing.turns == "clusters"


def plans_one_cut(config: RunConfig) -> bool:
    """Whether CPSL chooses the best cut for all: it does under its own policy, unless the settings give a cut."""
    is_asked = config.fleet.one_cut in ("auto", "fastest") and isinstance(config.fleet.cuts, str)
    return takes_turns(config) and is_asked and config.options.cpsl.cut == "one"


# --- clusters and cut, chosen once before a run


def choose_clusters(config: RunConfig, world: World, cut: int, num_samples: Array) -> Array:
    """CPSL's cluster of each client [K]: random, or by Gibbs sampling over the first round's latency."""
    num_clients = len(num_samples)
    num_clusters = min(config.options.cpsl.clusters, num_clients)
    rng = stream(config.seed, "clusters")
    if config.options.cpsl.clustering == "random":
        return random_clusters(num_clients, num_clusters, rng)
    num_batches = count_batches(config, num_samples)
    cuts, draw = np.full(num_clients, cut), world.draw(0)

    def latency_s(clusters: Array) -> float:
        phases = even_phases(
            config.framework, world.cost, cuts, config.train.batch_size, world.fleet, world.servers, world.links, draw,
            clusters=clusters,
        )  # fmt: skip
        return timeline(config.framework, phases, num_batches, clusters=clusters).round_s

    return gibbs_clusters(latency_s, num_clients, num_clusters, rng)[0]


def plan_one_cut(config: RunConfig, world: World, deepest: int, num_samples: Array) -> int:
    """The cut for all, up to `deepest`, with which the mean round over the samples is the shortest.

    num_samples: [K], as the clock charges them. The clusters are those that form at the cut `deepest`.
    """
    clusters, num_batches = choose_clusters(config, world, deepest, num_samples), count_batches(config, num_samples)
    draws = sample_draws(world, config.allocation.samples)
    count = min(len(draws.cpu_hz), config.allocation.samples)
    everyone, cuts = np.ones(world.fleet.num_clients, bool), range(min(config.fleet.min_cut, deepest), deepest + 1)

    def mean_s(cut: int) -> float:
        job = Job(config, world, np.full(len(everyone), cut), config.train.batch_size, num_batches, clusters=clusters)
        allotments = (GreedyTurns().allocate(job, draws.sample(index), everyone) for index in range(count))
        timelines = (
            timeline(config.framework, allotment.phases, num_batches, clusters=clusters) for allotment in allotments
        )
        return float(np.mean([of_round.round_s for of_round in timelines]))

    return min(cuts, key=mean_s)


# --- subchannels, dealt in every round


class GreedyTurns:
    """The policy `cpsl` of the framework CPSL."""

    def allocate(self, job: Job, draw: RoundDraw, started: Array) -> Allotment:
        if not isinstance(job.world.links, Ofdma):
            return replace(Even().allocate(job, draw, started), allocation_note={"policy": TURNS})
        assert job.clusters is not None, "CPSL has clusters"
        fixed = _without_links(job, draw)
        links_s, owners = np.zeros((4, len(started))), []
        for number in np.unique(job.clusters[started]):
            turn = Turn(job, draw, np.flatnonzero(started & (job.clusters == number)), fixed)
            owner, links_s[:3, turn.members] = turn.train()
            links_s[3, turn.members] = turn.distribute()
            owners.append(turn.members[owner].tolist())
        work_phases = {name: np.where(started, getattr(fixed, name), 0.0) for name in Phases.__dataclass_fields__}
        names = ("smashed_s", "gradient_s", "model_up_s", "model_down_s")
        return Allotment(
            Phases(**work_phases | dict(zip(names, links_s))), started, {"policy": TURNS, "owners": owners}
        )


class Turn:
    """The turn of one cluster: its members and what they have to do. fixed: phases without the links."""

    def __init__(self, job: Job, draw: RoundDraw, members: Array, fixed: Phases) -> None:
        links, servers, cost = job.world.links, job.world.servers, job.world.cost
        assert isinstance(links, Ofdma)
        assert draw.main_gain is not None
        assert draw.edge_gain is not None
        if len(members) > links.num_subchannels:
            raise InputError(
                f"network.num_subchannels is {links.num_subchannels} but {len(members)} clients share a turn, and policy "
                "cpsl deals whole subchannels; raise options.cpsl.clusters"
            )
        self.members, self.width_hz, self.up_w = members, links.subchannel_hz, job.world.fleet.max_power_w[members]
        self.main_w, self.edge_w = servers.main_power_w / len(members), servers.edge_power_w / len(members)
        self.main_start_w, self.edge_start_w = (links.noise_w / g[members] for g in (draw.main_gain, draw.edge_gain))
        cuts, batch_size = job.cuts[members], _of_every_client(job.batch_size, job)[members]
        self.smashed_bits, self.gradient_bits = (
            batch_size * cost.smashed_bits[cuts],
            batch_size * cost.gradient_bits[cuts],
        )
        self.model_bits, self.num_batches = cost.model_bits[cuts], _of_every_client(job.num_batches, job)[members]
        self.work = np.stack([getattr(fixed, f"{phase}_s")[members] for phase in BATCH_PHASES])  # [6, n]

    def train(self) -> tuple[Array, Array]:
        """Owners [I], as places among the members, and the seconds of smashed data, gradient and model upload [3, n]."""

        def links_s(m: int, owned: Array) -> Array:
            main_w, edge_w = self.main_start_w[m, owned], self.edge_start_w[m, owned]
            up, down, edge = (
                filled_bits(main_w, self.up_w[m]),
                filled_bits(main_w, self.main_w),
                filled_bits(edge_w, self.up_w[m]),
            )
            bits = np.array([self.smashed_bits[m], self.gradient_bits[m], self.model_bits[m]])
            return duration_s(bits, self.width_hz * np.array([up, down, edge]))

        return deal(self.main_start_w, links_s, self.turn_s)

    def distribute(self) -> Array:
        """Seconds of the download [n], on subchannels dealt for it alone."""

        def down_s(m: int, owned: Array) -> Array:
            return duration_s(self.model_bits[m], self.width_hz * filled_bits(self.edge_start_w[m, owned], self.edge_w))

        return deal(self.edge_start_w, down_s, lambda each_s: float(each_s.max()))[1]

    def turn_s(self, links_s: Array) -> float:
        """The seconds of all steps and of the upload, as the clock charges them. links_s: [3, n], as `train` returns them."""
        work = self.work.copy()
        work[SMASHED], work[GRADIENT], up_s = links_s
        return run_steps("joint", work, np.zeros(len(up_s)), self.num_batches).total_s + float(up_s.max())


def deal(
    start_w: Array, seconds_of: Callable[[int, Array], Array], total_s: Callable[[Array], float]
) -> tuple[Array, Array]:
    """Owners [I] of the subchannels and everyone's seconds [..., n].

    Every member gets its best free subchannel. Each further subchannel goes to the member for whom it shortens `total_s` most
    or, where it shortens nobody's, to the member who saves most seconds itself. seconds_of: a member's seconds on the
    subchannels that it owns. start_w: [n, I], noise over gain.
    """
    owner = np.full(start_w.shape[1], -1)
    for m, row in enumerate(start_w):
        owner[np.where(owner < 0, row, np.inf).argmin()] = m
    member_s = np.stack([seconds_of(m, owner == m) for m in range(len(start_w))], axis=-1)
    for i in np.flatnonzero(owner < 0):
        trials = []
        for m in range(len(start_w)):
            trial_s, owned = member_s.copy(), owner == m
            owned[i] = True
            trial_s[..., m] = seconds_of(m, owned)
            trials.append((total_s(trial_s), float(trial_s.sum()), m, trial_s))
        _, _, owner[i], member_s = min(trials, key=lambda trial: trial[:3])
    return owner, member_s


def filled_bits(start_w: Array, power_w: float) -> float:
    """Bits per second and hertz of a power water-filled over subchannels that start at noise / gain [m]."""
    start_w = np.sort(start_w)
    above_w = start_w - start_w[0]
    level_w = (power_w + np.cumsum(above_w)) / np.arange(1, len(start_w) + 1)  # above the best subchannel's start
    count = int((level_w > above_w).sum())  # sorted, so the filled subchannels come first
    return float(np.log1p((level_w[count - 1] - above_w[:count]) / start_w[:count]).sum() / LN2)


def _of_every_client(value: Array | float, job: Job) -> Array:
    return np.broadcast_to(np.asarray(value, float), job.cuts.shape)


def _without_links(job: Job, draw: RoundDraw) -> Phases:
    """The phases with links of endless speed and the whole server: computation alone."""
    world, endless = job.world, np.full(len(job.cuts), np.inf)
    rates = Rates(endless, endless, endless, endless)
    speed, server_speed = (
        draw.cpu_hz * world.fleet.flops_per_cycle,
        world.servers.main_hz * world.servers.flops_per_cycle,
    )
    work = world.fleet.work, world.servers.work
    return phases(world.cost, job.cuts, job.batch_size, speed, server_speed, rates, *work)
