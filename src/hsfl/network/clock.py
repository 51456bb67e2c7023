"""Who finishes when: the clock of a round for every framework, and the timeline that it makes.

Legend: K clients, P phases, N mini-batches (or steps, where all clients go together), E and M the model's upload and download, tau
the deadline after which a client's update no longer counts. `timeline` makes a `Timeline`: when every phase of every client begins
and ends, who was kept, who was dropped, and who was the straggler. Frameworks differ in the words of their
`framework_table.Timing`; docs/clock.md has the formulas.

A round of N batches is drawn as one batch stretched: the block of a phase is as long as that phase in all of the client's batches
together, and starts when the phases (and the waiting) before it, over all batches, are over. So blocks keep their order, the last
block ends with the round, and a chart needs nine blocks per client.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from hsfl.errors import InputError
from hsfl.framework_table import Timing, method
from hsfl.models.cost_table import CostTable
from hsfl.network.clusters import check_clusters
from hsfl.network.in_step_times import BATCH_PHASES, STEP_PHASES, ranks, run_steps
from hsfl.network.latency import Phases, Rates, duration_s
from hsfl.network.server_queue import QueuedWork, Serve

Array = np.ndarray

PHASES = (*STEP_PHASES, "model_up", "model_down")
MODEL_UP, MODEL_DOWN = PHASES.index("model_up"), PHASES.index("model_down")
SERVER = [PHASES.index("server_forward"), PHASES.index("server_backward")]
LEVEL = 1e-6  # of a time: what differs by less is the same
LONGEST_S = 1e100  # of a round; what is computed from it stays far from the largest number


@dataclass(frozen=True)
class Timeline:
    """One round, in seconds from its start. Nothing in it is infinite or NaN.

    `finish_s` is when a client's own part was over, before the closing download if there is one (tau if it was dropped, 0 if it did
    not start). `waiting_s` is the part of the round in which neither the client nor the radio nor the server works
    for it (0 if it did not start). `straggler` is the client that ends last; of several, the client with the most work of its
    own, without downloads and the server's work. Where clients take turns alone, it is the client with the longest turn; -1 if
    no client works.
    """

    framework: str
    start_s: Array  # [P, K]
    end_s: Array  # [P, K]
    started: Array  # [K] bool
    kept: Array  # [K] bool: its update counts
    finish_s: Array  # [K]
    waiting_s: Array  # [K]
    straggler: int
    round_s: float
    ending_s: dict[str, float] = field(default_factory=dict)  # seconds of each part of the round's end that takes time

    def __post_init__(self) -> None:
        for name in ("start_s", "end_s", "finish_s", "waiting_s", "round_s"):
            if not (np.abs(getattr(self, name)) <= LONGEST_S).all():
                raise InputError(
                    f"a round of {self.framework} takes endless time; give the clients faster links or speeds"
                )

    @property
    def dropped(self) -> Array:
        """Who is dropped at tau: the clients that started but were not over at tau, [K] bool."""
        return self.started & ~self.kept

    @property
    def phase_s(self) -> dict[str, Array]:
        """Seconds of each phase over the whole round, [K] each."""
        return dict(zip(PHASES, self.end_s - self.start_s))

    def spans(self) -> Iterator[tuple[int, str, float, float]]:
        """(client, phase, start_s, end_s) of every phase that takes time, client by client: the bars of a chart."""
        for k in range(self.start_s.shape[1]):
            for p, phase in enumerate(PHASES):
                if self.end_s[p, k] > self.start_s[p, k]:
                    yield k, phase, float(self.start_s[p, k]), float(self.end_s[p, k])


@dataclass(frozen=True)
class Why:
    """What holds a client up: its longest phase in a round. Data is in bytes and its rate in bits per second; computing is in FLOPs and
    FLOPs per second."""

    client: int
    phase: Literal["client", "smashed", "server", "gradient", "model_up", "model_down"]
    seconds: float  # of the phase over the round
    own_s: float  # of all the client's phases; the model's download is one where the server is a queue
    amount: float
    per_second: float


def _make_timeline(
    name: str,
    start: Array,
    end: Array,
    on: Array,
    kept: Array,
    *,
    finish_s: Array,
    busy_s: Array,
    own_s: Array,
    round_s: float,
    last_s: Array | None = None,
) -> Timeline:
    """The record of a round of framework `name`, from the seconds `start` and `end` of its blocks [P, K].

    on, kept: [K] bool, who takes part, and whose update counts. finish_s: [K], when a client's own part is over.
    busy_s: [K], how long the client, the radio or the server works for the client; it waits for the rest of the round.
    own_s: [K], the client's work apart from downloads; a client without any is no straggler.
    last_s: [K], the number that is largest for the straggler; by default `finish_s`.
    """
    waiting_s = np.where(on, np.maximum(round_s - busy_s, 0.0), 0.0)
    server_s = (end - start)[SERVER].sum(axis=0)
    straggler = _straggler(finish_s if last_s is None else last_s, own_s, server_s)
    return Timeline(name, start, end, on.copy(), kept.copy(), finish_s, waiting_s, straggler, float(round_s))


def _straggler(last_s: Array, own_s: Array, server_s: Array) -> int:
    """Of the clients that end last, the client with the most work apart from the server's work, since a policy gives the server's
    cycles to the client that it holds up; -1 if no client works."""
    if own_s.max() <= 0:
        return -1
    last = last_s >= last_s.max() * (1 - LEVEL)
    return int(np.where(last, np.maximum(own_s - server_s, 0.0), -1.0).argmax())


def timeline(
    name: str,
    phases: Phases,
    num_batches: Array | float,
    tau_s: float = np.inf,
    *,
    started: Array | None = None,
    clusters: Array | None = None,
    order: Array | None = None,
    decoder_s: Array | float = 0.0,
    cut_gradient: bool = False,
    serve: Serve | None = None,
) -> Timeline:
    """The round of framework `name` from the seconds of its phases, [K] (`even_phases` computes them).

    num_batches: N [K]; where N is a fraction, the last batch is a part of a batch.
    started: [K] bool, clients that take part; the others only receive the model. A planned drop costs no waiting.
    clusters: [K] numbers of CPSL's clusters, which take their turns in this order.
    order: SL, who follows whom [K]; SplitFed V2, the server's queue in every step [steps, K], or [K] in all.
    decoder_s: LocFedMix-SL, the decoder's forward and backward over one mini-batch, [K].
    cut_gradient: PSL averages the gradient at the cut, so that no model travels.
    serve: makes a round on a main server that is one queue (`server_queue.queued_round`, or its compiled twin), where phases are those of
    the whole server; None where each client has a part of the server. It is for frameworks that would divide the server.
    """
    row = method(name)
    if row.timeline is not None:
        given_timeline = row.timeline(
            phases, num_batches, tau_s, started=started, clusters=clusters, order=order, decoder_s=decoder_s,
            cut_gradient=cut_gradient,
        )  # fmt: skip
        return _checked_timeline(name, given_timeline, len(phases.model_up_s))
    if not tau_s > 0:
        raise InputError(f"tau_s is {tau_s}; it must be positive (leave it out to wait for everyone)")
    num_clients = len(phases.model_up_s)
    on = np.ones(num_clients, bool) if started is None else np.asarray(started, bool)
    work = _work(name, row.timing, phases, num_batches, on, cut_gradient)
    if row.timing.step == "pooled":
        return _pooled(work)
    if row.timing.turns == "alone":
        return _alone(work, order)
    if row.timing.step == "free":
        limit_s = tau_s if row.timing.tau else np.inf
        if serve is not None and row.timing.server == "divided":
            return _queued_until_tau(work, limit_s, serve)
        return _free_until_tau(work, limit_s)
    decoder_s = np.broadcast_to(np.asarray(decoder_s, float), (num_clients,))
    turns = _turns(row.timing, on, clusters)
    return _in_step(work, decoder_s, turns, order if row.timing.step == "queue" else None)


def with_end(timeline: Timeline, parts_s: dict[str, float]) -> Timeline:
    """The round with an end (`round_end`) for which everybody waits. parts_s: seconds by part."""
    taking_s = {name: part_s for name, part_s in parts_s.items() if part_s > 0}
    if not taking_s:
        return timeline
    total_s = sum(taking_s.values())
    waiting_s = np.where(timeline.started, timeline.waiting_s + total_s, timeline.waiting_s)
    return replace(timeline, waiting_s=waiting_s, round_s=timeline.round_s + total_s, ending_s=taking_s)


def _checked_timeline(name: str, given: object, num_clients: int) -> Timeline:
    """The timeline that the function of a plugin's framework gave, or an error that says what is wrong with it."""
    if not isinstance(given, Timeline):
        raise InputError(
            f"framework {name!r}: timeline gives a {type(given).__name__}; give an hsfl.network.clock.Timeline"
        )
    if (
        np.shape(given.kept) != (num_clients,)
        or np.shape(given.end_s) != (len(PHASES), num_clients)
        or given.round_s < 0
    ):
        raise InputError(
            f"framework {name!r}: timeline has round_s {given.round_s:g}, kept {np.shape(given.kept)} and end_s "
            f"{np.shape(given.end_s)}; give 0 or more, ({num_clients},) and ({len(PHASES)}, {num_clients})"
        )
    return given


@dataclass(frozen=True)
class _Work:
    """What there is to do in a round, before anybody waits for anybody."""

    name: str
    timing: Timing
    on: Array  # [K] bool: who takes part
    batch_s: Array  # [6, K], the phases of one mini-batch; 0 for clients that are off
    batches: Array  # [K]
    up_s: Array  # [K], the model's upload over the round
    down_s: Array  # [K], its download over the round

    @property
    def batches_s(self) -> Array:
        """The phases over all batches of the round, [6, K]."""
        return self.batch_s * self.batches

    @property
    def own_blocks_s(self) -> Array:
        """How long each phase before the download takes, [P - 1, K]; the decoder takes nothing."""
        return np.concatenate([self.batches_s, np.zeros_like(self.batch_s[:1]), self.up_s[None]])


def _work(
    name: str, timing: Timing, phases: Phases, num_batches: Array | float, on: Array, cut_gradient: bool
) -> _Work:
    """The work of the clients that are on. Where the model travels in every step, transfers count that often."""
    _check_phases(name, timing, phases, on)
    batches = _check_batches(name, timing, num_batches, on)
    batch_s = np.stack([np.where(on, getattr(phases, f"{phase}_s"), 0.0) for phase in BATCH_PHASES])
    transfers = 1.0
    if timing.models_each_step:
        transfers = 0.0 if cut_gradient else float(np.ceil(batches.max(initial=0.0)))
    up_s = transfers * np.where(on, phases.model_up_s, 0.0)
    down_s = transfers * np.asarray(phases.model_down_s, float)
    if timing.models_each_step and not cut_gradient:
        down_s = np.where(on, down_s, phases.model_down_s)  # who was away gets the head once, at the end
    return _Work(name, timing, on, batch_s, batches, up_s, down_s)


def _pooled(work: _Work) -> Timeline:
    """CL: the server goes through everyone's data; no client has anything to do."""
    on, batches_s = work.on, work.batches_s
    start, length = np.zeros((2, len(PHASES), len(on)))
    for phase in ("server_forward", "server_backward"):
        p = PHASES.index(phase)
        start[p], length[p] = length.sum(axis=0), batches_s[p].sum()
    total_s = length.sum(axis=0)
    return _make_timeline(
        work.name, start, start + length, on, on,
        finish_s=total_s, busy_s=total_s, own_s=np.zeros(len(on)), round_s=float(total_s[0]),
    )  # fmt: skip


def _queued_until_tau(work: _Work, tau_s: float, serve: Serve) -> Timeline:
    """On a server that is one queue each client begins when its own head has come down, and its batches wait for the server. A client that passes
    tau is dropped; its batches were served all the same."""
    on, down_s = work.on, work.down_s
    length = np.concatenate([down_s[None], work.own_blocks_s])
    end = np.cumsum(length, axis=0)
    own_s = end[-1] - down_s
    end[1 + SERVER[0] :] += serve(_queued_work(work, down_s)).waited_s
    in_time, last_s = end[-1] <= tau_s, np.where(on, tau_s, np.inf)  # who only gets the model is not dropped
    start, end = np.minimum(end - length, last_s), np.minimum(end, last_s)
    # The download is the last of PHASES.
    start, end = (np.concatenate([times[1:], times[:1]]) for times in (start, end))
    finish_s = np.where(on, end[MODEL_UP], 0.0)
    return _make_timeline(
        work.name, start, end, on, on & in_time,
        finish_s=finish_s, busy_s=(end - start).sum(axis=0), own_s=own_s, round_s=float(end.max()),
    )  # fmt: skip


def _free_until_tau(work: _Work, tau_s: float) -> Timeline:
    """Eq. (12): each client goes through its batches and its upload, and is dropped where it passes tau; then everyone downloads."""
    on, down_s, length = work.on, work.down_s, work.own_blocks_s
    end = np.cumsum(length, axis=0)
    own_s = end[-1].copy()
    finish_s = np.minimum(end[-1], tau_s)
    barrier_s = float(finish_s.max())
    in_time = end[-1] <= tau_s
    start = np.concatenate([np.minimum(end - length, tau_s), np.full((1, len(on)), barrier_s)])
    end = np.concatenate([np.minimum(end, tau_s), (barrier_s + down_s)[None]])
    return _make_timeline(
        work.name, start, end, on, on & in_time,
        finish_s=finish_s, busy_s=finish_s + down_s, own_s=own_s, round_s=barrier_s + down_s.max(),
    )  # fmt: skip


def _queued_work(work: _Work, ready_s: Array) -> QueuedWork:
    """The work as a server sees it that serves one batch at a time."""
    before_s, after_s = work.batch_s[: SERVER[0]].sum(axis=0), work.batch_s[SERVER[1] + 1 :].sum(axis=0)
    return QueuedWork(before_s, work.batch_s[SERVER].sum(axis=0), after_s, work.batches, work.up_s, ready_s)


def _alone(work: _Work, order: Array | None) -> Timeline:
    """SL: one client after another; each receives the head, goes through its batches and sends the head on."""
    on, length, num_clients = work.on, work.own_blocks_s, len(work.on)
    down_s = np.where(on, work.down_s, 0.0)
    turn_s = down_s + length.sum(axis=0)
    everyone = np.arange(num_clients)
    sequence = everyone if order is None else np.argsort(ranks(order, everyone, num_clients, 0))
    begin_s = np.empty(num_clients)
    begin_s[sequence] = np.cumsum(turn_s[sequence]) - turn_s[sequence]
    end = begin_s + down_s + np.cumsum(length, axis=0)
    start = np.concatenate([end - length, begin_s[None]])
    finish_s = np.where(on, end[-1], 0.0)
    end = np.concatenate([end, (begin_s + down_s)[None]])
    own_s = turn_s - down_s
    return _make_timeline(
        work.name, start, end, on, on,
        finish_s=finish_s, busy_s=turn_s, own_s=own_s, round_s=float(finish_s.max()), last_s=own_s,
    )  # fmt: skip


def _in_step(work: _Work, decoder_s: Array, turns: list[Array], order: Array | None) -> Timeline:
    """One turn after another; in a turn its clients make N steps together and upload.

    Where turns are taken the head is handed on, so that a turn begins with its download. Otherwise one download for
    everyone comes last.
    """
    on, up_s, down_s = work.on, work.up_s, work.down_s
    start, length = np.zeros((2, len(PHASES), len(on)))
    own_s, finish_s = np.zeros((2, len(on)))
    handed_on = work.timing.turns != "together"
    now_s = 0.0
    for turn in turns:
        if handed_on:
            start[MODEL_DOWN, turn], length[MODEL_DOWN, turn] = now_s, down_s[turn]
            now_s += float(down_s[turn].max())
        rank = None if order is None else ranks(order, turn, len(on), int(np.ceil(work.batches[turn].max())))
        steps = run_steps(work.timing.step, work.batch_s[:, turn], decoder_s[turn], work.batches[turn], rank)
        start[:MODEL_UP, turn], length[:MODEL_UP, turn] = now_s + steps.start_s, steps.length_s
        finish_s[turn], own_s[turn] = now_s + steps.finish_s, steps.busy_s + up_s[turn]
        now_s += steps.total_s
        start[MODEL_UP, turn], length[MODEL_UP, turn] = now_s, up_s[turn]
        now_s += float(up_s[turn].max())
    if not handed_on:
        start[MODEL_DOWN], length[MODEL_DOWN] = now_s, down_s
        now_s += float(down_s.max())
    end = start + length
    finish_s = np.where(up_s > 0, end[MODEL_UP], finish_s)
    return _make_timeline(
        work.name, start, end, on, on,
        finish_s=finish_s, busy_s=own_s + length[MODEL_DOWN], own_s=own_s, round_s=now_s,
    )  # fmt: skip


def _turns(framework: Timing, on: Array, clusters: Array | None) -> list[Array]:
    """The clients of each turn, in order; clients that did not start have none."""
    members = np.flatnonzero(on)
    if framework.turns == "together":
        return [members] if len(members) else []
    clusters = check_clusters(clusters, len(on))
    return [members[clusters[members] == number] for number in np.unique(clusters[members])]


def _check_phases(name: str, framework: Timing, phases: Phases, on: Array) -> None:
    for phase in (*BATCH_PHASES, "model_up", "model_down"):
        value = np.asarray(getattr(phases, f"{phase}_s"), float)
        matters = on | (phase == "model_down")  # a client that does not start may have no rate at all
        bad = matters & ~(np.isfinite(value) & (value >= 0))
        if bad.any():
            k = int(bad.argmax())
            raise InputError(f"{phase} of client {k} takes {value[k]} seconds in {name}; give it a rate and a speed")
        idle = {"none": ("client_forward", "client_backward"), "whole": BATCH_PHASES[1:5], "any": ()}[framework.cut]
        if phase in idle and (on & (value > 0)).any():
            k = int((on & (value > 0)).argmax())
            raise InputError(f"{phase} of client {k} takes {value[k]} seconds, but {name} has none; use framework_cuts")


def _check_batches(name: str, framework: Timing, num_batches: Array | float, on: Array) -> Array:
    batches = np.array(np.broadcast_to(np.asarray(num_batches, float), on.shape))
    bad = on & ~(np.isfinite(batches) & (batches > 0))
    if bad.any():
        k = int(bad.argmax())
        raise InputError(f"num_batches of client {k} is {batches[k]}; a client that starts needs at least some data")
    batches[~on] = 0.0
    if framework.models_each_step and on.any() and np.ptp(batches[on]) > 0:
        low, high = (int(np.flatnonzero(on)[pick(batches[on])]) for pick in (np.argmin, np.argmax))
        raise InputError(
            f"{name} makes equal steps, but num_batches of client {low} is {batches[low]} and of client {high} is "
            f"{batches[high]}; give each client a batch size in proportion to its data"
        )
    return batches


def raw_upload(name: str, cost: CostTable, num_samples: Array, rates: Rates) -> Timeline:
    """The upload before round 1 where data are pooled: every client sends its data (the bits at cut 0) to the main server.

    name: of the framework. num_samples: [K]. rates: of each client alone, in bits per second.
    """
    upload_s = duration_s(num_samples * cost.smashed_bits[0], rates.main_up_bps)
    on = np.ones(len(upload_s), bool)
    _check_finite_upload(upload_s)
    end = np.zeros((len(PHASES), len(on)))
    end[PHASES.index("smashed")] = upload_s
    return _make_timeline(
        name, np.zeros_like(end), end, on, on,
        finish_s=upload_s, busy_s=upload_s, own_s=upload_s, round_s=float(upload_s.max()),
    )  # fmt: skip


def after_upload(upload: Timeline, first_round: Timeline) -> Timeline:
    """The first round where data are pooled: the server trains when all data have arrived. first_round: the round without the upload."""
    p = PHASES.index("smashed")
    start, end = upload.round_s + first_round.start_s, upload.round_s + first_round.end_s
    start[p], end[p] = upload.start_s[p], upload.end_s[p]
    return _make_timeline(
        first_round.framework, start, end, first_round.started, first_round.kept,
        finish_s=upload.round_s + first_round.finish_s, busy_s=upload.finish_s + first_round.finish_s, own_s=upload.finish_s,
        round_s=upload.round_s + first_round.round_s,
    )  # fmt: skip


def _check_finite_upload(upload_s: Array) -> None:
    if not np.isfinite(upload_s).all():
        k = int(np.isfinite(upload_s).argmin())
        raise InputError(f"the raw data of client {k} takes {upload_s[k]} seconds to upload; give it a rate")
