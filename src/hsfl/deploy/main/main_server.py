"""The main server: it plans every round, leads the edge server through it, and ends it with one list of kept clients.

One coroutine makes the rounds (`MainProcess.run`); the handlers (`handlers`, `remote_evaluation`) change the open round and
wake the coroutine. A client is kept when its tail is complete here and its head at the edge server. The servers agree on the
list before they swap sums (`_agree_and_swap_sums`). When the edge server is lost, the round is opened there again
(`_reopen_round`), or made again as a whole.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from hsfl.deploy.admin.fleet_orders import fewest_clients, judge_round, members_who_may, take_orders, tau_now_s
from hsfl.deploy.edge_server import ClientAtFault, sum_kept_clients
from hsfl.deploy.main.clip_factors import agree_on_factors
from hsfl.deploy.main.cut_planner import RoundPlan
from hsfl.deploy.main.earned_weights import Claim, EarnedWeight, earned_weights, weight_note
from hsfl.deploy.main.edge_link import EdgeLost, HeadWithdrawn
from hsfl.deploy.main.handlers import AttendHandler, SharedState, TrainHandler
from hsfl.deploy.main.loss_jump import JumpWatch
from hsfl.deploy.main.main_round import MainRound, SpareTails, begin_round
from hsfl.deploy.main.run_record import write_clients
from hsfl.deploy.main.server_checkpoint import MainCheckpoint
from hsfl.deploy.main.status import status_handler
from hsfl.deploy.wire.client_messages import RoundOver
from hsfl.deploy.wire.link_probe import answer_probe
from hsfl.deploy.wire.messages import pack_message
from hsfl.deploy.wire.server_messages import Have, Swap
from hsfl.deploy.wire.transport import Backoff, ServedMethod, Stopped, unless_stopped
from hsfl.deploy.wire.versions import own_versions, version_differences
from hsfl.errors import InputError
from hsfl.frameworks.framework import join
from hsfl.models.state import UnitState
from hsfl.planning.rounds.participation import choose_present
from hsfl.runs.run_folder.write_records import Summary
from hsfl.training.aggregate import PartialSum
from hsfl.training.roles import Server

NEWS_S = 5.0  # after which the edge server answers even if there is no news
ORDERS_S = 1.0  # between two looks at the operator's orders, while there is no round
MOST_TRIES = 5  # in a row at one round, if every try keeps nobody
PAUSE_S = (1.0, 60.0)  # first and longest wait between two tries at a round that kept some clients, but too few


class TooFew(Exception):
    """A round that keeps fewer clients than it needs. diverged: whether all dropped clients were dropped for numbers
    that grew beyond sense or are not finite. num_kept: clients that did their part."""

    def __init__(self, sentence: str, diverged: bool, num_kept: int) -> None:
        super().__init__(sentence)
        self.diverged, self.num_kept = diverged, num_kept


class Drained(Exception):
    """The operator wants the main server to end between two rounds."""


class MainProcess:
    """The main server's methods, and the loop over rounds."""

    def __init__(self, shared: SharedState, checkpoint: MainCheckpoint) -> None:
        self.shared, self.checkpoint, self.spare_tails = shared, checkpoint, SpareTails(shared.kit)
        self.attend_handler, self.train_handler = AttendHandler(shared), TrainHandler(shared)
        self.started = False  # whether the first round since the start of this process has begun
        self.jump_watch = JumpWatch(shared, self._swap_sums, checkpoint.test_loss)
        self.weights_told: dict[str, EarnedWeight] = {}  # by client: what the log says already
        self.edge_away = False  # whether the log says that the edge server is away
        self.edge_instance = ""  # the edge server's process whose versions were compared
        self.stopping = asyncio.Event()

    def methods(self) -> dict[str, ServedMethod]:
        clients = ("client",)
        return {
            "Attend": ServedMethod("stream_stream", clients, self.attend_handler.attend),
            "Train": ServedMethod("stream_stream", clients, self.train_handler.train),
            "Evaluate": ServedMethod("stream_stream", clients, self.checkpoint.evaluate_handler.evaluate),
            "Probe": ServedMethod("unary_unary", clients, answer_probe),
            "Status": ServedMethod("unary_unary", ("main",), status_handler(self.shared, self.checkpoint)),
        }

    def drop_revoked(self, name: str, why: str) -> None:
        """A client whose certificate was revoked will not come back: the round does not wait for it."""
        if name in self.shared.roster.names:
            self.shared.drop(self.shared.roster.names.index(name), "revoked", why)

    async def run(self) -> Summary:
        """Make all rounds that are left, then end the run; returns its summary."""
        status, tries, backoff, pause = "finished", 0, Backoff(), Backoff(*PAUSE_S)
        while self.checkpoint.round < self.shared.kit.config.train.rounds:
            try:
                await unless_stopped(self._make_round(), self.stopping)
                tries = 0
                backoff.reset()
                pause.reset()
            except Stopped:
                status = "interrupted"
                break
            except Drained:
                self.shared.control.note_drained()
                status = "interrupted"
                break
            except EdgeLost as error:
                self._log_edge_lost(error)
                await self._end_attempt("the edge server is away")
                await self.shared.edge.close()
                await backoff.wait()
            except TooFew as error:
                tries = 0 if error.num_kept else tries + 1
                self.shared.log.event("round made again", "warning", round=self.checkpoint.round + 1, why=str(error))
                if (open_round := self.shared.open_round) is not None:
                    judge_round(self.shared, open_round, open_round.agreed, is_complete=False)
                await self._end_attempt("too few clients were kept")  # a client is not told how many others there are
                if tries >= MOST_TRIES:
                    status = "diverged" if error.diverged else "interrupted"
                    break
                if error.num_kept:  # some devices spoil the round of others: they must not end the server with it
                    with suppress(Stopped):  # the next try sees it
                        await unless_stopped(pause.wait(), self.stopping)
        await self._end_attempt("the main server ends")
        await self.checkpoint.end_test()
        return await self.checkpoint.finish(status)

    async def _make_round(self) -> None:
        """Make one round, from waiting for clients to the checkpoint."""
        seats = await self._wait_for_clients()
        standing = await self.shared.edge.begin_run(self.shared.kit)
        self._log_edge_back()
        await self.checkpoint.test_again()
        if self.shared.planner.end.swap_bps is None:
            self.shared.planner.know_link_of_servers(await self.shared.edge.measure_link())
        began_s = time.perf_counter()
        plan = self.shared.planner.plan(self.checkpoint.round, tuple(sorted(seats)), self.shared.roster.labels())
        cuts = [plan.cuts[seat] for seat in seats]
        stop = dict(zip(standing.rounds, standing.stops)).get(self.checkpoint.round)
        await self._share_units(min(cuts), max(cuts), stop)
        weights, notes = self._earned_weights(seats, plan)
        write_clients(
            self.checkpoint.folder,
            self.shared.planner,
            plan,
            self.shared.roster,
            self.shared.kit,
            self.checkpoint.classes,
            self.shared.settings.evaluate,
            self.shared.edge.versions,
            notes,
        )
        state = self.checkpoint.state[min(cuts) : self.checkpoint.state.stop]
        deadline_s = asyncio.get_running_loop().time() + self._tau_s
        open_round = self.shared.open_round = await self.shared.compute.run(
            partial(
                begin_round, self.shared.kit, self.checkpoint.round, state, plan, seats, self.spare_tails, deadline_s
            )
        )
        open_round.counted = self.checkpoint.counted
        for seat, weight in weights.items():
            open_round.tails[seat].weight = weight
        self.started = True
        self.shared.log.event("round begins", round=self.checkpoint.round + 1, clients=len(seats), cuts=cuts)
        await self._send_orders(open_round)
        open_round.ending_s["open"] = time.perf_counter() - began_s
        await self._wait_until_complete(open_round)
        after = await self._agree_and_swap_sums(open_round)
        if self.shared.settings.on_jump is not None:
            with open_round.timing("test"):
                await self.checkpoint.end_test()  # a model at a time
                after = await self.jump_watch.settle(open_round, state, after)
        await self.checkpoint.write_round(open_round, after, began_s)

    def _earned_weights(self, seats: dict[int, tuple[str, int]], plan: RoundPlan) -> tuple[dict[int, int], list[str]]:
        """What each client counts in the average, by seat, and notes on those that count less than they claim. The log says it once."""
        claims = {
            seat: Claim(name, num_samples, plan.cuts[seat], self.shared.settings.most_samples(name))
            for seat, (name, num_samples) in seats.items()
        }
        earned, notes = earned_weights(claims, self.shared.kit.num_units), []
        for seat, answer in earned.items():
            claim = claims[seat]
            if answer.why is None:
                self.weights_told.pop(claim.name, None)
                continue
            notes.append(weight_note(claim.name, claim.num_samples, answer))
            if self.weights_told.get(claim.name) != answer:
                self.weights_told[claim.name] = answer
                self.shared.log.event(
                    "client counts less than it claims", "warning", client=claim.name, claims=claim.num_samples,
                    counts_as=answer.weight, why=answer.why,
                )  # fmt: skip
        return {seat: answer.weight for seat, answer in earned.items()}, notes

    async def _wait_for_clients(self) -> dict[int, tuple[str, int]]:
        """Wait until there are enough clients for the next round; returns their names and numbers of samples by seat.
        After a restart in mid-run, `first_clients` are waited for until tau; then `min_clients` are enough."""
        clock, config = asyncio.get_running_loop().time, self.shared.kit.config
        until_s = clock() + self._tau_s if self.checkpoint.round else math.inf
        try:
            while True:
                self.shared.roster.changed.clear()
                take_orders(self.shared)
                if self.shared.control.state.draining:
                    raise Drained
                fewest, members = fewest_clients(self.shared), members_who_may(self.shared)
                least = fewest if self.started else max(self.shared.settings.first_clients or 1, fewest)
                least = least if clock() < until_s else min(least, fewest)
                if self.shared.control.state.paused:
                    self.shared.waits_for = None
                elif len(members) >= least:
                    chosen = choose_present(config, self.checkpoint.round, members)
                    return {k: (members[k].name, sum(members[k].ready.class_counts)) for k in chosen}
                else:
                    self._log_waiting(least, len(members))
                left_s = until_s - clock() if least > fewest else math.inf
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, ORDERS_S)):
                        await self.shared.roster.changed.wait()
        finally:
            self.shared.waits_for = None

    def _log_waiting(self, least: int, num_present: int) -> None:
        if self.shared.waits_for != least:
            self.shared.log.event(
                "waits for clients", round=self.checkpoint.round + 1, clients=num_present, wanted=least
            )
            self.shared.waits_for = least

    @property
    def _tau_s(self) -> float:
        return tau_now_s(self.shared)

    async def _share_units(self, low: int, high: int, edge_stop: int | None) -> None:
        """Give both servers the units that the round's cuts ask for: `[low, num_units)` to this server, `[0, high)` to
        the edge server. edge_stop: the edge server holds `[0, edge_stop)`; None if it lacks the round."""
        if edge_stop is None:
            if self.checkpoint.round or self.checkpoint.state.start:
                raise InputError(
                    f"the edge server does not hold round {self.checkpoint.round}, where the main server is; start it in its own folder"
                )
            edge_stop = 0
            if not high:
                await self.shared.edge.take_units(self.checkpoint.round, self.checkpoint.state[0:0])
        if edge_stop < high:
            await self.shared.edge.take_units(self.checkpoint.round, self.checkpoint.state[edge_stop:high])
        if low < self.checkpoint.state.start:
            kit, wanted = self.shared.kit, self.shared.kit.empty(low, self.checkpoint.state.start)
            lower = await self.shared.edge.give_units(self.checkpoint.round, wanted)
            kit.check_units(lower, "the edge server")
            self.checkpoint.state = join(lower, self.checkpoint.state)[low : self.checkpoint.state.stop].clone()

    async def _send_orders(self, open_round: MainRound) -> None:
        """Open the round at the edge server and send every client its order."""
        seats = open_round.seats()
        await self.shared.edge.open_round(open_round.round, open_round.attempt, seats)
        open_round.edge_stop = max((seat.cut for seat in seats), default=0)
        for seat in seats:
            self.shared.roster.send(seat.seat, pack_message(open_round.order(seat.seat)))

    async def _wait_until_complete(self, open_round: MainRound) -> None:
        """Wait until every client is complete or dropped; at the round's deadline, drop those that are not complete."""
        clock = asyncio.get_running_loop().time
        news: asyncio.Task[Have] | None = None
        try:
            while open_round.waiting():
                left_s = open_round.deadline_s - clock()
                if left_s <= 0:
                    for seat in open_round.waiting():
                        self.shared.drop(seat, "late", f"it was not done after tau = {self._tau_s:g} s")
                    break
                known = (
                    0
                    if open_round.head_report is None
                    else len(open_round.head_report.seats) + len(open_round.head_report.refused)
                )
                news = news or asyncio.create_task(
                    self.shared.edge.await_heads(open_round.attempt, known, min(left_s, NEWS_S))
                )
                open_round.changed.clear()
                change = asyncio.create_task(open_round.changed.wait())
                await asyncio.wait((news, change), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                if news.done():
                    try:
                        self._note_heads(open_round, news.result())
                    except EdgeLost as error:
                        await self._reopen_round(open_round, error)
                    news = None
        finally:
            if news is not None:
                news.cancel()

    def _note_heads(self, open_round: MainRound, have: Have) -> None:
        open_round.head_report = have
        open_round.model_up_s = dict(zip(have.seats, have.model_up_s))
        for seat, reason, sentence in zip(have.refused, have.reasons, have.words):
            self.shared.drop(seat, reason, sentence)

    async def _reopen_round(self, open_round: MainRound, lost: EdgeLost) -> None:
        """The edge server was away: once it is back, it gets the round again and every client uploads its head again."""
        self._log_edge_lost(lost)
        open_round.was_disturbed = True
        clock, backoff = asyncio.get_running_loop().time, Backoff()
        open_round.head_report, open_round.model_up_s = None, {}
        while True:
            await self.shared.edge.close()
            await backoff.wait()
            if clock() > open_round.deadline_s:
                raise lost
            try:
                standing = await self.shared.edge.begin_run(self.shared.kit)
                if open_round.round not in standing.rounds:
                    raise InputError(f"the edge server has lost round {open_round.round}; start it in its own folder")
                await self._send_orders(open_round)
                self._log_edge_back()
                return
            except EdgeLost:
                continue

    def _log_edge_lost(self, lost: EdgeLost) -> None:
        """Say that the edge server is away: once, however often it is tried again."""
        if not self.edge_away:
            self.shared.log.event("edge server lost", "warning", round=self.checkpoint.round + 1, why=str(lost))
        self.edge_away = True

    def _log_edge_back(self) -> None:
        if self.edge_away:
            self.shared.log.event("edge server is back", round=self.checkpoint.round + 1)
        self.edge_away = False
        edge = self.shared.edge
        if edge.instance != self.edge_instance and (differences := version_differences(edge.versions, own_versions())):
            self.shared.log.event("the edge server runs other versions than this server", "warning", **differences)
        self.edge_instance = edge.instance

    async def _agree_and_swap_sums(self, open_round: MainRound) -> UnitState:
        """Agree on one list of kept clients: both servers sum these clients, swap the sums of the common units, and
        divide. Returns the new state."""
        while True:
            kept = open_round.agreed = open_round.kept()
            fewest = fewest_clients(self.shared)
            if len(kept) < fewest:
                drops = open_round.drops.values()
                diverged = bool(drops) and all(reason in ("diverged", "not_finite") for reason in drops)
                raise TooFew(
                    f"{len(kept)} of {len(open_round.tails)} clients were kept; {fewest} make a round",
                    diverged,
                    len(kept),
                )
            try:
                return await self._swap_sums(open_round, kept)
            except ClientAtFault as fault:
                self._withdraw_agreement(open_round)
                self.shared.drop(fault.seat, "other", f"its tail cannot be summed: {fault.sentence}")
            except HeadWithdrawn as error:
                self._withdraw_agreement(open_round)
                self._note_heads(open_round, await self.shared.edge.await_heads(open_round.attempt, 0, 0.0))
                if open_round.kept() == kept:
                    raise InputError(f"edge server: {error}, and it names no client; look at its log") from None
            except EdgeLost as error:
                self._withdraw_agreement(open_round)
                await self._reopen_round(open_round, error)
                await self._wait_until_complete(open_round)

    async def _swap_sums(self, open_round: MainRound, kept: Sequence[int]) -> UnitState:
        """Both servers sum these clients, clipped where the run clips, swap the sums of the common units, and divide. Returns the new state;
        a round whose sums were swapped can be summed anew with other clients."""
        with open_round.timing("average"):
            sides = {seat: open_round.tails[seat].side for seat in kept}
            factors = await agree_on_factors(self.shared, open_round, kept)
            server = await self.shared.compute.run(partial(sum_kept_clients, open_round.state, sides, kept, factors))
            start, stop = open_round.common
            main_sum = server.send(start, stop) if start < stop else None
            message = Swap(open_round.round, open_round.attempt, list(kept), start, stop)
            began_s = time.perf_counter()
            return await self.shared.edge.swap_sums(
                message, main_sum, partial(self._divide_sums, open_round, server, began_s)
            )

    async def _divide_sums(
        self, open_round: MainRound, server: Server, began_s: float, edge_sum: PartialSum | None
    ) -> UnitState:
        """The state after the round, from this server's sums and the edge server's of the common units. began_s: when the swap began, by
        `perf_counter`."""
        if edge_sum is not None:
            open_round.ending_s["swap"] = open_round.ending_s.get("swap", 0.0) + time.perf_counter() - began_s
            self.shared.metrics.carried("main_edge", "up", edge_sum.num_bytes)
            self.shared.metrics.carried("main_edge", "down", edge_sum.num_bytes)
            await self.shared.compute.run(partial(server.merge, edge_sum))
        return await self.shared.compute.run(server.close)

    def _withdraw_agreement(self, open_round: MainRound) -> None:
        """Forget the agreement, as the sums were not swapped. Clients that were to be dropped are dropped now."""
        postponed_drops, open_round.postponed_drops, open_round.agreed = open_round.postponed_drops, [], []
        for seat, reason, sentence in postponed_drops:
            self.shared.drop(seat, reason, sentence)

    async def _end_attempt(self, why: str) -> None:
        """Give the open round up; its clients wait for the next order."""
        open_round, self.shared.open_round = self.shared.open_round, None
        if open_round is not None:
            for seat, tail in open_round.tails.items():
                if tail.dropped is None:
                    self.shared.roster.send(
                        seat, pack_message(RoundOver(open_round.round, open_round.attempt, False, why[:1000]))
                    )
                self.spare_tails.give_back(tail.cut, tail.working_copy)
