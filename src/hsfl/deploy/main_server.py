"""The main server: clients attend here, are planned for, and train their tails here; it leads the edge server through each round.

One coroutine makes the rounds (`Main.run`); handlers only change the open round and wake it. A round ends with one list of kept
clients: tail complete here, head complete at the edge server, agreed before sums are swapped.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hsfl.deploy.compute import Compute
from hsfl.deploy.edge_link import EdgeLink, EdgeLost
from hsfl.deploy.frames import WireError
from hsfl.deploy.identity import caller
from hsfl.deploy.kit import Kit
from hsfl.deploy.logs import Log
from hsfl.deploy.main_round import MainRound, Parts, open_round
from hsfl.deploy.messages import (
    AskTokens,
    Batch,
    End,
    Ended,
    Enter,
    Entered,
    Have,
    Hello,
    Leave,
    Ready,
    RoundOver,
    Stop,
    Swap,
    Welcome,
    expect,
    pack,
)
from hsfl.deploy.metrics import Metrics
from hsfl.deploy.plan import Planner
from hsfl.deploy.probe import probe
from hsfl.deploy.record import advance, make_record, save_model, write_clients, write_end
from hsfl.deploy.roster import Member, Roster
from hsfl.deploy.serving import Backoff, Method, hear, must_hear
from hsfl.deploy.settings import TAU_S, MainSettings, sent_settings
from hsfl.deploy.store import Store
from hsfl.deploy.sums import agreed
from hsfl.deploy.tails import Tail
from hsfl.errors import InputError
from hsfl.files import checked
from hsfl.frameworks.base import join
from hsfl.models.state import UnitState, load_state
from hsfl.runs.folder import RunFolder
from hsfl.runs.loop import choose_clients
from hsfl.runs.record import Summary
from hsfl.runs.records import RoundRecord, Standing
from hsfl.training.batches import Images
from hsfl.training.evaluate import Quality, evaluate
from hsfl.training.link import LinkBytes

NEWS_S = 5.0  # that the edge server may take to say that there is no news
MOST_TRIES = 5  # of one round that keeps too few clients
OVER_S = 5.0  # that clients have to go when there are no more rounds


class Stopped(Exception):
    """The operator ends the server."""


class Main:
    """The main server's handlers, and the loop over rounds."""

    def __init__(
        self,
        settings: MainSettings,
        kit: Kit,
        planner: Planner,
        test: Images | None,
        classes: Sequence[str],
        folder: RunFolder,
        edge: EdgeLink,
        compute: Compute,
        log: Log,
        metrics: Metrics,
    ) -> None:
        self.settings, self.kit, self.planner, self.test, self.classes = settings, kit, planner, test, tuple(classes)
        self.folder, self.edge, self.compute, self.log, self.metrics = folder, edge, compute, log, metrics
        self.roster = Roster(folder.path, settings.clients, kit.config.fleet.num_clients)
        self.store, self.parts = Store(folder.path / "checkpoint"), Parts(kit)
        self.round, self.state, self.standing = 0, kit.initial, Standing(0)
        self.now: MainRound | None = None
        self.started = False  # whether the first round since the start of this process has begun
        self.stopping = asyncio.Event()
        self.drops: dict[str, int] = {}  # since the start, by client

    def methods(self) -> dict[str, Method]:
        clients = ("client",)
        return {
            "Attend": Method("stream_stream", clients, self.attend),
            "Train": Method("stream_stream", clients, self.train),
            "Probe": Method("unary_unary", clients, probe),
        }

    # ---- clients

    async def attend(self, messages: Any, context: Any) -> None:
        """A client's connection, for as long as it stays."""
        hello, _ = expect(await must_hear(context), Hello)
        caller().must_be(hello.name)
        seat, kit = self.roster.seat(hello.name), self.kit
        await context.write(pack(Welcome(seat, sent_settings(kit.config), list(kit.input_shape), kit.num_classes)))
        ready, _ = expect(await must_hear(context), Ready)
        self._check_ready(hello.name, ready)
        member = Member(hello.name, seat, ready)
        self.planner.join(seat, ready)
        self.roster.join(member)
        self.log.event("client joined", client=hello.name, seat=seat, samples=sum(ready.class_counts))
        self.metrics.clients.set(len(self.roster.members))
        hearing = asyncio.create_task(self._hear_member(member, context))
        try:
            await self._welcome_back(member)
            while (message := await member.outbox.get()) is not None:
                await context.write(message)
        finally:
            hearing.cancel()
            if self.roster.leave(member):
                self.log.event("client left", client=hello.name)
            self.metrics.clients.set(len(self.roster.members))

    def _check_ready(self, name: str, ready: Ready) -> None:
        self.kit.check_fingerprint(ready.fingerprint, name)
        if len(ready.class_counts) != self.kit.num_classes or not sum(ready.class_counts):
            raise InputError(
                f"{name} has samples of {len(ready.class_counts)} classes, or none; {self.kit.num_classes} are trained"
            )
        self.planner.deepest(ready.measured.memory_bits)

    async def _hear_member(self, member: Member, context: Any) -> None:
        """What a client says besides training; the connection ends with the last word."""
        try:
            while (content := await hear(context)) is not None:
                message, _ = expect(content, AskTokens, Leave)
                if isinstance(message, Leave):
                    self._drop(member.seat, "disconnected", "it left")
                    break
                if self.now is not None and message.attempt == self.now.attempt:
                    await self._fresh_tokens(self.now, member.seat)
        except WireError as error:
            self.log.event("message refused", "warning", client=member.name, reason=error.reason, why=error.words)
        finally:
            member.outbox.put_nowait(None)

    async def _welcome_back(self, member: Member) -> None:
        """A client that comes back in the middle of a round goes on, or begins its round anew if it was restarted."""
        now = self.now
        tail = None if now is None else now.tails.get(member.seat)
        if now is None or tail is None or tail.dropped is not None or now.is_complete(member.seat):
            return
        if member.ready.holds != now.attempt:
            async with tail.lock:
                tail.restart()
        await self._fresh_tokens(now, member.seat)

    async def _fresh_tokens(self, now: MainRound, seat: int) -> None:
        if seat not in now.tails or now.tails[seat].dropped is not None:
            return
        try:
            now.hand_out([seat], await self.edge.allow(now.attempt, [seat]))
        except EdgeLost:
            return  # the loop opens the round again and tells everybody
        self.roster.send(seat, pack(now.order(seat)))

    def _drop(self, seat: int, reason: str, words: str) -> None:
        now = self.now
        if now is None or seat not in now.tails or not now.drop(seat, reason, words):
            return
        name = now.tails[seat].name
        self.log.event("client dropped", "warning", client=name, round=now.round + 1, reason=reason, why=words)
        self.metrics.dropped(reason)
        self.drops[name] = self.drops.get(name, 0) + 1
        self.roster.send(seat, pack(RoundOver(now.round, now.attempt, False, words[:1000])))

    # ---- batches

    async def train(self, messages: Any, context: Any) -> None:
        """A client's batches of a round."""
        enter, _ = expect(await must_hear(context), Enter)
        now, tail = self._tail(enter)
        stream = object()
        async with tail.lock:
            await context.write(pack(Entered(tail.enter(stream))))
        try:
            while (content := await hear(context)) is not None:
                message, tensors = expect(content, Batch, End)
                if isinstance(message, End):
                    async with tail.lock:
                        self._check_open(now, tail)
                        await self.compute.run(lambda message=message: tail.finish(message))
                    now.changed.set()
                    await context.write(pack(Ended()))
                    return
                await context.write(await self._step(now, tail, message, tensors, stream, len(content)))
        except WireError as error:
            if error.reason != "stale":
                self._drop(tail.seat, error.reason, error.words)
            raise

    def _tail(self, enter: Enter) -> tuple[MainRound, Tail]:
        """The round and the tail of the client that calls."""
        now, name = self.now, caller().name
        if now is None or enter.attempt != now.attempt:
            raise WireError("stale", "that attempt at the round is over")
        tail = next((tail for tail in now.tails.values() if tail.name == name), None)
        if tail is None or tail.dropped is not None:
            raise WireError("stale", f"{name} has no part in this round, or not any more")
        now.tokens.use(name, now.round, as_token(enter.token))
        return now, tail

    def _check_open(self, now: MainRound, tail: Tail) -> None:
        if now is not self.now or tail.dropped is not None:
            raise WireError("stale", "the round is over for this client")

    async def _step(
        self, now: MainRound, tail: Tail, message: Batch, tensors: dict[str, Any], stream: object, num_bytes: int
    ) -> bytes:
        async with tail.lock:
            self._check_open(now, tail)
            if tail.repeats(message, stream):
                return tail.last
            if tensors.keys() != {"smashed", "labels"} or tail.part is None:
                raise WireError("protocol", f"a batch with tensors {sorted(tensors)}, not smashed and labels")
            cost = len(tensors["labels"]) * float(self.planner.cost.server_flops[tail.cut])
            weight = now.plan.weight(tail.seat)
            done = await self.compute.timed(lambda: tail.compute(tensors), tail.seat, cost, weight)
            loss, gradient = done.answer
            self.metrics.carried("client_main", "up", tensors["smashed"].nbytes)
            self.metrics.carried("client_main", "down", gradient.nbytes)
            return tail.answer(loss, gradient, done.waited_s, done.took_s, tensors["smashed"].nbytes)

    # ---- rounds

    def restore(self) -> None:
        """Go on from the last completed round, if there is one."""
        rounds = self.store.rounds()
        if not rounds:
            return
        self.state, notes = self.store.load(rounds[-1], self.kit)
        self.standing = checked(notes["progress"], Standing, "the checkpoint's progress")
        self.round = self.standing.rounds_done
        self.folder.keep_rounds(self.round)
        self.log.event("goes on from the last completed round", round=self.round)

    async def run(self) -> Summary:
        """All rounds."""
        status, tries, backoff = "finished", 0, Backoff()
        while self.round < self.kit.config.train.rounds:
            try:
                await self._unless_stopped(self._one_round())
                tries = 0
                backoff.reset()
            except Stopped:
                status = "interrupted"
                break
            except EdgeLost as error:
                self.log.event("edge server lost", "warning", round=self.round + 1, why=str(error))
                await self._end_attempt("the edge server is away")
                await self.edge.lose()
                await backoff.wait()
            except TooFew as error:
                tries += 1
                self.log.event("round made again", "warning", round=self.round + 1, why=str(error))
                await self._end_attempt(str(error))
                if tries >= MOST_TRIES:
                    status = "diverged" if error.diverged else "interrupted"
                    break
        return await self._finish(status)

    async def _unless_stopped(self, work: Any) -> None:
        """Do the work unless the operator ends the server meanwhile."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self.stopping.wait())
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            raise Stopped
        await working

    async def _one_round(self) -> None:
        """One round, from the edge server's readiness to the checkpoint."""
        seats = await self._enough()
        standing = await self.edge.begin(self.kit)
        began_s = time.perf_counter()
        plan = self.planner.plan(self.round, tuple(sorted(seats)), self.roster.names)
        cuts = [plan.cuts[seat] for seat in seats]
        stop = dict(zip(standing.rounds, standing.stops)).get(self.round)
        await self._share_units(min(cuts), max(cuts), stop)
        write_clients(self.folder, self.planner, plan, self.roster, self.kit, self.classes)
        tau_s = self.kit.config.train.tau_s or TAU_S
        state = self.state[min(cuts) : self.state.stop]
        now = self.now = open_round(self.kit, self.round, state, plan, seats, self.parts, tau_s)
        self.started = True
        self.log.event("round begins", round=self.round + 1, clients=len(seats), cuts=cuts)
        await self._tell_everybody(now)
        await self._gather(now)
        after = await self._agree(now)
        await self._write(now, after, began_s)

    async def _enough(self) -> dict[int, tuple[str, int]]:
        """The clients of the next round, by seat their name and samples; waits until there are enough."""
        least = self.settings.min_clients if self.started else self.settings.start_clients
        chosen, said = choose_clients(self.kit.config, self.round), False
        while True:
            self.roster.changed.clear()
            here = {k: member for k, member in sorted(self.roster.members.items()) if k in chosen}
            if len(here) >= min(least, len(chosen)) and here:
                return {k: (member.name, sum(member.ready.class_counts)) for k, member in here.items()}
            if not said:
                self.log.event("waits for clients", round=self.round + 1, clients=len(here), wanted=least)
                said = True
            await self.roster.changed.wait()

    async def _share_units(self, low: int, high: int, edge_stop: int | None) -> None:
        """Both servers get the units that the cuts of the round ask for: `[low, num_units)` here, `[0, high)` there."""
        if edge_stop is None:
            if self.round or self.state.start:
                raise InputError(
                    f"the edge server does not hold round {self.round}, where the main server is; start it in its own folder"
                )
            edge_stop = 0
            if not high:
                await self.edge.take_units(self.round, self.state[0:0])
        if edge_stop < high:
            await self.edge.take_units(self.round, self.state[edge_stop:high])
        if low < self.state.start:
            lower = await self.edge.give_units(self.round, self.kit.empty(low, self.state.start))
            self.state = join(lower, self.state)[low : self.state.stop].clone()

    async def _tell_everybody(self, now: MainRound) -> None:
        """Open the round at the edge server and send every client its order."""
        seats = now.seats()
        answer = await self.edge.open(now.round, now.attempt, seats)
        now.hand_out([seat.seat for seat in seats], answer)
        for seat in seats:
            self.roster.send(seat.seat, pack(now.order(seat.seat)))

    async def _gather(self, now: MainRound) -> None:
        """Until every client is complete or dropped; tau is the one limit."""
        clock = asyncio.get_running_loop().time
        news: asyncio.Task[Have] | None = None
        try:
            while now.waiting():
                left_s = now.deadline_s - clock()
                if left_s <= 0:
                    for seat in now.waiting():
                        self._drop(
                            seat, "late", f"it was not done after tau = {self.kit.config.train.tau_s or TAU_S:g} s"
                        )
                    break
                known = 0 if now.have is None else len(now.have.seats) + len(now.have.refused)
                news = news or asyncio.create_task(self.edge.wait(now.attempt, known, min(left_s, NEWS_S)))
                now.changed.clear()
                change = asyncio.create_task(now.changed.wait())
                await asyncio.wait((news, change), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                if news.done():
                    try:
                        self._hear_edge(now, news.result())
                    except EdgeLost as error:
                        await self._reopen(now, error)
                    news = None
        finally:
            if news is not None:
                news.cancel()

    def _hear_edge(self, now: MainRound, have: Have) -> None:
        now.have = have
        now.model_up_s = dict(zip(have.seats, have.model_up_s))
        for seat, words in zip(have.refused, have.reasons):
            self._drop(seat, "protocol", words)

    async def _reopen(self, now: MainRound, lost: EdgeLost) -> None:
        """The edge server was away: once it is back, it gets the round again and every client uploads its head again."""
        self.log.event("edge server lost", "warning", round=now.round + 1, why=str(lost))
        clock, backoff = asyncio.get_running_loop().time, Backoff()
        now.have, now.model_up_s = None, {}
        while True:
            await self.edge.lose()
            await backoff.wait()
            if clock() > now.deadline_s:
                raise lost
            try:
                standing = await self.edge.begin(self.kit)
                if now.round not in standing.rounds:
                    raise InputError(f"the edge server has lost round {now.round}; start it in its own folder")
                await self._tell_everybody(now)
                self.log.event("edge server is back", round=now.round + 1)
                return
            except EdgeLost:
                continue

    async def _agree(self, now: MainRound) -> UnitState:
        """One kept list; both servers sum these clients, swap the sums of the common units, and divide."""
        while True:
            kept = now.kept()
            if len(kept) < self.settings.min_clients:
                diverged = all(reason in ("diverged", "not_finite") for reason in now.drops.values())
                raise TooFew(
                    f"{len(kept)} of {len(now.tails)} clients were kept; {self.settings.min_clients} make a round",
                    diverged,
                )
            sides = {seat: now.tails[seat].side for seat in kept}
            server = await self.compute.run(lambda sides=sides, kept=kept: agreed(now.state, sides, kept))
            start, stop = min(now.cuts), max(now.cuts)
            mine = server.send(start, stop) if start < stop else None
            try:
                theirs = await self.edge.swap(Swap(now.round, now.attempt, kept, start, stop), mine)
            except EdgeLost as error:
                await self._reopen(now, error)
                await self._gather(now)
                continue
            if theirs is not None:
                self.metrics.carried("main_edge", "up", theirs.num_bytes)
                self.metrics.carried("main_edge", "down", theirs.num_bytes)
                server.merge(theirs)
            return await self.compute.run(server.close)

    async def _write(self, now: MainRound, after: UnitState, began_s: float) -> None:
        """The round in the run folder; with the checkpoint it is complete."""
        kept, config = now.kept(), self.kit.config
        last = now.round + 1 == config.train.rounds
        whole = quality = None
        if self.test is not None and (last or (now.round + 1) % config.train.eval_every == 0):
            whole = await self._whole(now.round + 1, after)
            quality = await self.compute.run(lambda: self._assess(whole))
        measured = {seat: now.tails[seat].phases(now.model_up_s[seat]) for seat in kept}
        before_s = self._modelled_s()
        record = make_record(
            self.kit, now.round, before_s, now.plan, now.tails, kept, measured, self._sent(now), quality,
            time.perf_counter() - began_s,
        )  # fmt: skip
        self.standing = advance(self.standing, record)
        self.folder.append(record)
        if whole is not None and self.standing.best_round == record.round:
            save_model(self.folder, whole, best=True)
        self._keep(after)
        self._end_well(now, record, measured)

    def _modelled_s(self) -> float:
        records = self.folder.rounds()
        return records[-1].sim_time_s if records else 0.0

    def _keep(self, after: UnitState) -> None:
        """The checkpoint, and only then the new position."""
        notes = {"progress": json.dumps(asdict(self.standing)), "config": self.kit.config.model_dump_json()}
        self.store.save(self.round + 1, after, notes)
        self.round, self.state = self.round + 1, after

    def _end_well(self, now: MainRound, record: RoundRecord, measured: dict[int, dict[str, float]]) -> None:
        self.now = None
        for seat, tail in now.tails.items():
            if seat in measured:
                self.roster.send(seat, pack(RoundOver(now.round, now.attempt, True, "")))
                head = self.kit.empty(0, tail.cut).num_bytes
                self.planner.learn(
                    seat, tail.cut, measured[seat], {"up": tail.up_bytes, "down": tail.down_bytes, "head": head}
                )
                for phase in ("client", "smashed", "server", "gradient", "model_up", "model_down"):
                    self.metrics.phase(phase, measured[seat][phase])
            self.parts.give_back(tail.cut, tail.part)
        self.metrics.completed(record.round, record.wall_s)
        self.log.event(
            "round complete", round=record.round, kept=len(record.kept), of=len(record.started), train_loss=record.train_loss,
            test_accuracy=record.test_accuracy, wall_s=round(record.wall_s, 3),
        )  # fmt: skip

    async def _end_attempt(self, why: str) -> None:
        """Give the open round up; its clients wait for the next order."""
        now, self.now = self.now, None
        if now is not None:
            for seat, tail in now.tails.items():
                if tail.dropped is None:
                    self.roster.send(seat, pack(RoundOver(now.round, now.attempt, False, why[:1000])))
                self.parts.give_back(tail.cut, tail.part)

    def _sent(self, now: MainRound) -> LinkBytes:
        """Bytes on each link, as a simulation counts them."""
        start, stop = min(now.cuts), max(now.cuts)
        sums = 2 * (self._sum_bytes(start, stop) if start < stop else 0)
        assert now.have is not None
        return LinkBytes(
            client_main_up=sum(tail.up_bytes for tail in now.tails.values()),
            client_main_down=sum(tail.down_bytes for tail in now.tails.values()),
            client_edge_up=now.have.up_bytes,
            client_edge_down=now.have.down_bytes,
            edge_main=sums,
        )

    def _sum_bytes(self, start: int, stop: int) -> int:
        units = self.kit.empty(start, stop)
        return 8 * (units.floats.numel() + units.ints.numel() + stop - start)

    async def _whole(self, round: int, state: UnitState) -> UnitState:
        """The snapshot of a round, joined: the lower units come from the edge server."""
        if not state.start:
            return state
        return join(await self.edge.give_units(round, self.kit.empty(0, state.start)), state)

    def _assess(self, whole: UnitState | None) -> Quality:
        assert whole is not None and self.test is not None
        load_state(whole, self.kit.model)
        return evaluate(self.kit.model.eval(), self.test, self.kit.num_classes)

    async def _finish(self, status: str) -> Summary:
        """The last model and the summary; clients are told that there are no more rounds."""
        await self._end_attempt("the main server ends")
        try:
            if status == "finished":
                await self.edge.begin(self.kit)
            save_model(self.folder, await self._whole(self.round, self.state), best=False)
        except EdgeLost as error:
            self.log.event("the last model is not joined: the edge server is away", "warning", why=str(error))
        if status == "finished":
            for seat in list(self.roster.members):
                self.roster.send(seat, pack(Stop("all rounds are done")))
            deadline_s = time.monotonic() + OVER_S
            while self.roster.members and time.monotonic() < deadline_s:
                await asyncio.sleep(0.05)
        return write_end(self.folder, self.kit, status)


class TooFew(Exception):
    """A round that keeps fewer clients than it needs."""

    def __init__(self, words: str, diverged: bool) -> None:
        super().__init__(words)
        self.diverged = diverged


def as_token(text: str) -> bytes:
    """A token as it was given."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise WireError("protocol", "a token that is no number in hex") from None
