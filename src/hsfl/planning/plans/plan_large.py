"""The plan of a large fleet, a crowd: a fleet of too many clients to give each a row, or of several cells.

Cuts are those that a run plans. Rounds are sampled, each with the clients that take part in it, and timed by the clock of a run,
which keeps `train.tau_s`, too.

Legend: K clients, S sampled rounds, Q quantiles.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hsfl.allocation.cuts.search import OnProgress
from hsfl.config import RunConfig
from hsfl.formats import QUANTILES, counted, quantiles
from hsfl.framework_table import AT_ONE_CUT, PROPOSED
from hsfl.network.channel import Ofdma
from hsfl.network.clock import PHASES, Timeline
from hsfl.planning.cuts import choose_cuts
from hsfl.planning.fair_defaults import alike_words
from hsfl.planning.rounds.participation import SAMPLED_ROUNDS, CutTask, times_drawn
from hsfl.planning.rounds.round_clock import Extras, RoundClock
from hsfl.planning.world import World, sample_draws

Array = np.ndarray
Clocked = tuple[Timeline, dict[str, Any]]  # a round, and what the policy says of it


@dataclass(frozen=True)
class PlanCrowd:
    """What a plan says of a crowd, instead of a row for each client."""

    num_clients: int
    num_cells: int
    cuts: dict[str, int]  # how many clients have each cut
    num_chosen: list[int]  # [S] clients that are to take part in each sampled round
    num_kept: list[int]  # [S] clients of these that end within tau
    rounds_s: list[float]  # [S]
    bounds_s: list[float]  # [S] no allocation with these cuts can beat it; 0 where nothing is proven
    quantiles: list[int]  # [Q] per cent of the clients
    seconds: dict[str, list[float]]  # [Q] of each phase, over the clients that the last sampled round keeps
    finish_s: list[float]  # [Q] when these clients have trained and sent their models
    cell_hz: list[float]  # [Q] cycles of the main server, over the cells of that round; empty under the even allocation


@dataclass(frozen=True)
class CrowdRounds:
    """The sampled rounds of a crowd under one policy, with the cuts that a run plans for it."""

    cuts: tuple[int, ...]  # [K]
    clock: RoundClock
    rounds: list[Clocked]  # [S]
    search_s: float = 0.0  # of real time, to choose the cuts
    note: str | None = None  # what to say of a search for cuts that its time limit stopped

    @property
    def num_stopped(self) -> int:
        """The sampled rounds whose allocation the time limit ended."""
        return sum(allocation_note.get("status") == "time_limit" for _, allocation_note in self.rounds)

    @property
    def mean_s(self) -> float:
        return float(np.mean([timeline.round_s for timeline, _ in self.rounds]))


class CrowdSamples:
    """Rounds to plan a crowd on: `allocation.samples` of them where somebody set it, else as few as cuts are planned on.

    passes: over a client's batches in a round.
    """

    def __init__(self, config: RunConfig, world: World, num_samples: Array, passes: int = 1) -> None:
        self.world, self.num_samples, self.extras = world, num_samples, Extras(passes=passes)
        wanted = config.allocation.samples if "samples" in config.allocation.model_fields_set else SAMPLED_ROUNDS
        draws = sample_draws(world, wanted)
        self.played = replace(world, recorded=draws)  # a clock plays the samples back, as it would play a history
        drawn = (times_drawn(config, index, num_samples, "sampled") for index in range(min(wanted, len(draws.cpu_hz))))
        self.chosen = [tuple(np.flatnonzero(times).tolist()) for times in drawn]  # [S]

    def under(self, config: RunConfig, policy: str, progress: OnProgress | None = None) -> CrowdRounds:
        """The rounds of a run with this policy. config: whose framework has a cut for each client."""
        config, began = _with_policy(config, policy), time.monotonic()
        cuts, note = choose_cuts(CutTask.of_run(config, self.world, self.num_samples, self.extras.passes))
        took_s = time.monotonic() - began
        return replace(self.at(config, np.array(cuts), progress), search_s=took_s, note=note)

    def at(self, config: RunConfig, cuts: Array, progress: OnProgress | None = None) -> CrowdRounds:
        """The rounds of a run with the config's policy and these cuts [K]."""
        clock = RoundClock(config, self.played, tuple(cuts.tolist()), self.num_samples, self.extras)
        rounds: list[Clocked] = []
        for clocked in self._clocked(clock):
            rounds.append(clocked)
            if progress is not None:
                best_s = min(timeline.round_s for timeline, _ in rounds)
                progress(f"{config.allocation.policy}, sampled round", len(rounds), best_s)
        return CrowdRounds(tuple(cuts.tolist()), clock, rounds)

    def _bounds_s(self, planned: CrowdRounds) -> list[float]:
        """Seconds that no allocation with the planned cuts can beat, [S]; the even allocation proves no bound, so the bound of
        the proposed policy counts, where both keep everyone."""
        config = planned.clock.job.config
        if config.allocation.policy != "even":
            return [
                allocation_note.get("lower_bound_s", timeline.round_s) for timeline, allocation_note in planned.rounds
            ]
        config = _with_policy(config, "proposed")
        proposed = RoundClock(config, self.played, planned.cuts, self.num_samples, self.extras)
        pairs = zip(self._clocked(proposed), planned.rounds)
        return [
            min(allocation_note.get("lower_bound_s", timeline.round_s), even.round_s)
            if timeline.kept.sum() == even.kept.sum() == len(chosen)
            else 0.0
            for ((timeline, allocation_note), (even, _)), chosen in zip(pairs, self.chosen)
        ]

    def record(self, planned: CrowdRounds) -> PlanCrowd:
        """The planned rounds in a few numbers."""
        links, timelines = self.world.links, [timeline for timeline, _ in planned.rounds]
        last, allocation_note = planned.rounds[-1]
        on, spent_s = last.kept, last.phase_s
        return PlanCrowd(
            num_clients=self.world.fleet.num_clients,
            num_cells=links.num_cells if isinstance(links, Ofdma) else 1,
            cuts=counted(np.array(planned.cuts)),
            num_chosen=[len(chosen) for chosen in self.chosen],
            num_kept=[int(timeline.kept.sum()) for timeline in timelines],
            rounds_s=[timeline.round_s for timeline in timelines],
            bounds_s=self._bounds_s(planned),
            quantiles=list(QUANTILES),
            seconds={name: quantiles(spent_s[name][on]) for name in PHASES if spent_s[name][on].any()},
            finish_s=quantiles(last.finish_s[on]),
            cell_hz=quantiles(np.array(allocation_note["cell_hz"])) if "cell_hz" in allocation_note else [],
        )

    def _clocked(self, clock: RoundClock) -> Iterator[Clocked]:
        return (clock.round(index, chosen) for index, chosen in enumerate(self.chosen))


def _with_policy(config: RunConfig, policy: str) -> RunConfig:
    """The config of a run that plans its cuts for a policy."""
    allocation = config.allocation.model_copy(update={"policy": policy})
    fleet = config.fleet.model_copy(update={"cuts": "planned"})
    return config.model_copy(update={"allocation": allocation, "fleet": fleet})


def crowd_notes(config: RunConfig, crowd: PlanCrowd, num_stopped: int) -> list[str]:
    """What stands out: clients that tau leaves out, one cut for all, and sampled rounds that the time limit ended."""
    notes, late = [], sum(crowd.num_chosen) - sum(crowd.num_kept)
    if num_stopped:
        notes.append(
            f"allocation.time_limit_s = {config.allocation.time_limit_s:g} ended the allocation of {num_stopped} of {len(crowd.rounds_s)} "
            f"sampled rounds before allocation.gap = {config.allocation.gap:g} was proven; with more time they may be faster"
        )
    if late:
        notes.append(
            f"{late:,} of the {sum(crowd.num_chosen):,} clients in the sampled rounds do not end within train.tau_s = "
            f"{config.train.tau_s:g}; a run leaves them out, too"
        )
    if len(crowd.cuts) == 1 and crowd.num_clients > 1:
        alike = alike_words(config, PROPOSED, AT_ONE_CUT)
        notes.append(f"all clients have cut {next(iter(crowd.cuts))}, so {alike}")
    return notes
