"""The main server: it plans every round, leads the edge server through it, and ends it with one list of kept clients.

One coroutine makes the rounds; the handlers (`attending`, `stepping`) change the open round and wake the coroutine. A
client is kept when its tail is complete here and its head at the edge server. The servers agree on the list before sums
are swapped.
"""

import asyncio
import math
import time
from contextlib import suppress
from functools import partial

from hsfl.deploy.edge_server import agreed
from hsfl.deploy.main.edge_link import EdgeLost
from hsfl.deploy.main.handlers import Attending, Desk, Stepping
from hsfl.deploy.main.main_round import MainRound, SpareTails, begin_round
from hsfl.deploy.main.server_checkpoint import Keeping
from hsfl.deploy.run_record import write_clients
from hsfl.deploy.settings import TAU_S
from hsfl.deploy.status import status_handler
from hsfl.deploy.wire.client_messages import RoundOver
from hsfl.deploy.wire.link_probe import probe
from hsfl.deploy.wire.messages import pack_message
from hsfl.deploy.wire.server_messages import Have, Swap
from hsfl.deploy.wire.transport import Backoff, Served, Stopped, unless_stopped
from hsfl.errors import InputError
from hsfl.frameworks.framework import join
from hsfl.models.state import UnitState
from hsfl.planning.participation import choose_present
from hsfl.runs.write_records import Summary
from hsfl.training.aggregate import PartialSum
from hsfl.training.roles import Server

NEWS_S = 5.0  # after which the edge server answers even if there is no news
MOST_TRIES = 5  # at one round, if every try keeps too few clients


class TooFew(Exception):
    """A round that keeps fewer clients than it needs. diverged: whether all dropped clients were dropped for numbers
    that grew beyond sense or are not finite."""

    def __init__(self, words: str, diverged: bool) -> None:
        super().__init__(words)
        self.diverged = diverged


class Main:
    """The main server's methods, and the loop over rounds."""

    def __init__(self, desk: Desk, keeping: Keeping) -> None:
        self.desk, self.keeping, self.parts = desk, keeping, SpareTails(desk.kit)
        self.attending, self.stepping = Attending(desk), Stepping(desk)
        self.started = False  # whether the first round since the start of this process has begun
        self.edge_away = False  # whether the log says that the edge server is away
        self.stopping = asyncio.Event()

    def methods(self) -> dict[str, Served]:
        clients = ("client",)
        return {
            "Attend": Served("stream_stream", clients, self.attending.attend),
            "Train": Served("stream_stream", clients, self.stepping.train),
            "Evaluate": Served("stream_stream", clients, self.keeping.evaluating.evaluate),
            "Probe": Served("unary_unary", clients, probe),
            "Status": Served("unary_unary", ("main",), status_handler(self.desk, self.keeping)),
        }

    def drop_revoked(self, name: str, why: str) -> None:
        """A client whose certificate was revoked will not come back: the round does not wait for it."""
        if name in self.desk.roster.names:
            self.desk.drop(self.desk.roster.names.index(name), "revoked", why)

    async def run(self) -> Summary:
        """Make all rounds that are left, then end the run; returns its summary."""
        status, tries, backoff = "finished", 0, Backoff()
        while self.keeping.round < self.desk.kit.config.train.rounds:
            try:
                await unless_stopped(self._one_round(), self.stopping)
                tries = 0
                backoff.reset()
            except Stopped:
                status = "interrupted"
                break
            except EdgeLost as error:
                self._say_lost(error)
                await self._end_attempt("the edge server is away")
                await self.desk.edge.lose()
                await backoff.wait()
            except TooFew as error:
                tries += 1
                self.desk.log.event("round made again", "warning", round=self.keeping.round + 1, why=str(error))
                await self._end_attempt("too few clients were kept")  # a client is not told how many others there are
                if tries >= MOST_TRIES:
                    status = "diverged" if error.diverged else "interrupted"
                    break
        await self._end_attempt("the main server ends")
        return await self.keeping.finish(status)

    async def _one_round(self) -> None:
        """Make one round, from waiting for clients to the checkpoint."""
        seats = await self._enough()
        standing = await self.desk.edge.begin(self.desk.kit)
        self._say_back()
        began_s = time.perf_counter()
        plan = self.desk.planner.plan(self.keeping.round, tuple(sorted(seats)), self.desk.roster.labels())
        cuts = [plan.cuts[seat] for seat in seats]
        stop = dict(zip(standing.rounds, standing.stops)).get(self.keeping.round)
        await self._share_units(min(cuts), max(cuts), stop)
        write_clients(
            self.keeping.folder, self.desk.planner, plan, self.desk.roster, self.desk.kit, self.keeping.classes
        )
        state = self.keeping.state[min(cuts) : self.keeping.state.stop]
        deadline_s = asyncio.get_running_loop().time() + self._tau_s
        open_round = self.desk.open_round = await self.desk.compute.run(
            partial(begin_round, self.desk.kit, self.keeping.round, state, plan, seats, self.parts, deadline_s)
        )
        self.started = True
        self.desk.log.event("round begins", round=self.keeping.round + 1, clients=len(seats), cuts=cuts)
        await self._tell_everybody(open_round)
        await self._gather(open_round)
        after = await self._agree(open_round)
        await self.keeping.write(open_round, after, began_s)

    async def _enough(self) -> dict[int, tuple[str, int]]:
        """Wait until there are enough clients for the next round; returns their names and numbers of samples by seat.
        After a restart in mid-run, `first_clients` are waited for until tau; then `min_clients` are enough."""
        settings, members, clock = self.desk.settings, self.desk.roster.members, asyncio.get_running_loop().time
        least = settings.min_clients if self.started else settings.start_clients
        until_s = clock() + self._tau_s if self.keeping.round else math.inf
        try:
            while True:
                self.desk.roster.changed.clear()
                least = least if clock() < until_s else min(least, settings.min_clients)
                if len(members) >= least:
                    chosen = choose_present(self.desk.kit.config, self.keeping.round, members)
                    return {k: (members[k].name, sum(members[k].ready.class_counts)) for k in chosen}
                self._say_waiting(least)
                left_s = until_s - clock() if least > settings.min_clients else math.inf
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s if math.isfinite(left_s) else None):
                        await self.desk.roster.changed.wait()
        finally:
            self.desk.waits_for = None

    def _say_waiting(self, least: int) -> None:
        if self.desk.waits_for != least:
            num_present = len(self.desk.roster.members)
            self.desk.log.event("waits for clients", round=self.keeping.round + 1, clients=num_present, wanted=least)
            self.desk.waits_for = least

    @property
    def _tau_s(self) -> float:
        return self.desk.kit.config.train.tau_s or TAU_S

    async def _share_units(self, low: int, high: int, edge_stop: int | None) -> None:
        """Give both servers the units that the round's cuts ask for: `[low, num_units)` to this server, `[0, high)` to
        the edge server. edge_stop: the edge server holds `[0, edge_stop)`; None if it lacks the round."""
        if edge_stop is None:
            if self.keeping.round or self.keeping.state.start:
                raise InputError(
                    f"the edge server does not hold round {self.keeping.round}, where the main server is; start it in its own folder"
                )
            edge_stop = 0
            if not high:
                await self.desk.edge.take_units(self.keeping.round, self.keeping.state[0:0])
        if edge_stop < high:
            await self.desk.edge.take_units(self.keeping.round, self.keeping.state[edge_stop:high])
        if low < self.keeping.state.start:
            lower = await self.desk.edge.give_units(
                self.keeping.round, self.desk.kit.empty(low, self.keeping.state.start)
            )
            self.keeping.state = join(lower, self.keeping.state)[low : self.keeping.state.stop].clone()

    async def _tell_everybody(self, open_round: MainRound) -> None:
        """Open the round at the edge server and send every client its order."""
        seats = open_round.seats()
        await self.desk.edge.open(open_round.round, open_round.attempt, seats)
        open_round.edge_stop = max((seat.cut for seat in seats), default=0)
        for seat in seats:
            self.desk.roster.send(seat.seat, pack_message(open_round.order(seat.seat)))

    async def _gather(self, open_round: MainRound) -> None:
        """Wait until every client is complete or dropped; at the round's deadline, drop those that are not complete."""
        clock = asyncio.get_running_loop().time
        news: asyncio.Task[Have] | None = None
        try:
            while open_round.waiting():
                left_s = open_round.deadline_s - clock()
                if left_s <= 0:
                    for seat in open_round.waiting():
                        self.desk.drop(seat, "late", f"it was not done after tau = {self._tau_s:g} s")
                    break
                known = 0 if open_round.have is None else len(open_round.have.seats) + len(open_round.have.refused)
                news = news or asyncio.create_task(self.desk.edge.wait(open_round.attempt, known, min(left_s, NEWS_S)))
                open_round.changed.clear()
                change = asyncio.create_task(open_round.changed.wait())
                await asyncio.wait((news, change), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                if news.done():
                    try:
                        self._hear_edge(open_round, news.result())
                    except EdgeLost as error:
                        await self._reopen(open_round, error)
                    news = None
        finally:
            if news is not None:
                news.cancel()

    def _hear_edge(self, open_round: MainRound, have: Have) -> None:
        open_round.have = have
        open_round.model_up_s = dict(zip(have.seats, have.model_up_s))
        for seat, reason, words in zip(have.refused, have.reasons, have.words):
            self.desk.drop(seat, reason, words)

    async def _reopen(self, open_round: MainRound, lost: EdgeLost) -> None:
        """The edge server was away: once it is back, it gets the round again and every client uploads its head again."""
        self._say_lost(lost)
        clock, backoff = asyncio.get_running_loop().time, Backoff()
        open_round.have, open_round.model_up_s = None, {}
        while True:
            await self.desk.edge.lose()
            await backoff.wait()
            if clock() > open_round.deadline_s:
                raise lost
            try:
                standing = await self.desk.edge.begin(self.desk.kit)
                if open_round.round not in standing.rounds:
                    raise InputError(f"the edge server has lost round {open_round.round}; start it in its own folder")
                await self._tell_everybody(open_round)
                self._say_back()
                return
            except EdgeLost:
                continue

    def _say_lost(self, lost: EdgeLost) -> None:
        """Say that the edge server is away: once, however often it is tried again."""
        if not self.edge_away:
            self.desk.log.event("edge server lost", "warning", round=self.keeping.round + 1, why=str(lost))
        self.edge_away = True

    def _say_back(self) -> None:
        if self.edge_away:
            self.desk.log.event("edge server is back", round=self.keeping.round + 1)
        self.edge_away = False

    async def _agree(self, open_round: MainRound) -> UnitState:
        """Agree on one list of kept clients: both servers sum these clients, swap the sums of the common units, and
        divide. Returns the new state."""
        while True:
            kept = open_round.agreed = open_round.kept()
            if len(kept) < self.desk.settings.min_clients:
                diverged = all(reason in ("diverged", "not_finite") for reason in open_round.drops.values())
                raise TooFew(
                    f"{len(kept)} of {len(open_round.tails)} clients were kept; {self.desk.settings.min_clients} make a round",
                    diverged,
                )
            sides = {seat: open_round.tails[seat].side for seat in kept}
            server = await self.desk.compute.run(partial(agreed, open_round.state, sides, kept))
            start, stop = open_round.common
            main_sum = server.send(start, stop) if start < stop else None
            try:
                message = Swap(open_round.round, open_round.attempt, kept, start, stop)
                return await self.desk.edge.swap(message, main_sum, partial(self._divide, server))
            except EdgeLost as error:
                self._disagree(open_round)
                await self._reopen(open_round, error)
                await self._gather(open_round)

    async def _divide(self, server: Server, edge_sum: PartialSum | None) -> UnitState:
        """The state after the round, from this server's sums and the edge server's of the common units."""
        if edge_sum is not None:
            self.desk.metrics.carried("main_edge", "up", edge_sum.num_bytes)
            self.desk.metrics.carried("main_edge", "down", edge_sum.num_bytes)
            await self.desk.compute.run(partial(server.merge, edge_sum))
        return await self.desk.compute.run(server.close)

    def _disagree(self, open_round: MainRound) -> None:
        """Forget the agreement, as the sums were not swapped. Clients that were to be dropped are dropped now."""
        later, open_round.later, open_round.agreed = open_round.later, [], []
        for seat, reason, words in later:
            self.desk.drop(seat, reason, words)

    async def _end_attempt(self, why: str) -> None:
        """Give the open round up; its clients wait for the next order."""
        open_round, self.desk.open_round = self.desk.open_round, None
        if open_round is not None:
            for seat, tail in open_round.tails.items():
                if tail.dropped is None:
                    self.desk.roster.send(
                        seat, pack_message(RoundOver(open_round.round, open_round.attempt, False, why[:1000]))
                    )
                self.parts.give_back(tail.cut, tail.part)
