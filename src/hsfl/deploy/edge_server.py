"""The edge server: sends every client its head, takes and checks the trained heads, and swaps sums with the main server.

The main server leads. It says which model is trained (`begin_run`), opens a round (`start_round`), asks whose heads are
complete (`await_heads`), and closes the round with one list of kept clients (`swap_sums`): only then does either server sum
its side of these clients. An uploaded head is checked in `_check_head` before it counts. The disk holds the last two rounds
of each run. Everything else may be lost with this process: the main server opens the round again, and clients upload again.

The main server sums with the same function, `sum_kept_clients`.
"""

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hsfl.data.passes import RoundSteps
from hsfl.deploy.clipped_sides import Factors, side_norms
from hsfl.deploy.compute_queue import ComputeQueue
from hsfl.deploy.device_limits import made_within_memory
from hsfl.deploy.logs import Log
from hsfl.deploy.metrics import Metrics
from hsfl.deploy.model_kit import ModelKit, make_kit
from hsfl.deploy.settings import received_config
from hsfl.deploy.trust.identity import caller
from hsfl.deploy.unit_store import UnitStore
from hsfl.deploy.wire.client_messages import Fetch, Upload, Uploaded
from hsfl.deploy.wire.coded_heads import ArrivedHead
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.link_probe import answer_probe
from hsfl.deploy.wire.messages import expect_message, pack_message
from hsfl.deploy.wire.model_chunks import (
    both_results,
    collect,
    most_state_bytes,
    most_sum_bytes,
    read_sum,
    send,
    state_bytes,
    sum_bytes,
    unpack_state,
)
from hsfl.deploy.wire.server_messages import (
    AskNorms,
    Await,
    Begin,
    Clipped,
    Done,
    GiveUnits,
    Have,
    Norms,
    Open,
    Seat,
    Standing,
    Swap,
    TakeUnits,
)
from hsfl.deploy.wire.transport import ServedMethod, read_request
from hsfl.deploy.wire.versions import own_versions
from hsfl.errors import InputError
from hsfl.frameworks.framework import join
from hsfl.models.state import UnitState
from hsfl.training.aggregate import Diverged, PartialSum, check_growth, largest_allowed
from hsfl.training.roles import FinishedSide, Server


@dataclass
class EdgeRound:
    """An open round at the edge server: who takes part, whose heads are complete, and whose were refused."""

    round: int
    attempt: str
    state: UnitState  # units [0, max cut)
    seats: dict[str, Seat]  # by name
    largest_values: tuple[float, ...]  # the largest absolute value that each unit may hold after the round
    finished: dict[int, FinishedSide] = field(default_factory=dict)
    model_up_s: dict[int, float] = field(default_factory=dict)
    refused: dict[int, tuple[str, str]] = field(default_factory=dict)  # by seat: the reason in one word, and a sentence
    factors: Factors | None = None  # what updates are multiplied with, where they are clipped
    is_summed: bool = False  # whether its sums were swapped before: a round whose loss jumps is summed anew
    up_bytes: int = 0
    down_bytes: int = 0
    began_s: float = field(default_factory=time.perf_counter)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    streams: dict[tuple[str, int], asyncio.Task[Any]] = field(default_factory=dict)  # by what is carried, and seat

    @contextmanager
    def sole_stream(self, what: str, seat: int) -> Iterator[None]:
        """A client's stream with a head ends the one before: each holds a whole head in memory, and a client may open many."""
        task, key = asyncio.current_task(), (what, seat)
        assert task is not None
        before, self.streams[key] = self.streams.get(key), task
        if before is not None:
            before.cancel()
        try:
            yield
        except asyncio.CancelledError:
            if self.streams.get(key) is task:  # the peer is gone, or the server stops
                raise
            task.uncancel()
            raise WireError(
                "replaced", "another stream has replaced this one, or the round is over; fetch or upload again"
            ) from None
        finally:
            if self.streams.get(key) is task:
                del self.streams[key]

    def end_streams(self) -> None:
        """End what still carries heads of this round."""
        streams, self.streams = self.streams, {}
        for task in streams.values():
            task.cancel()

    @property
    def weight(self) -> float:
        """Of all clients that may be summed."""
        return float(sum(seat.weight for seat in self.seats.values()))


def _join_units(before: UnitState, more: UnitState) -> UnitState:
    """The units of both states; `more` begins where `before` ends."""
    return join(before, more)[0 : more.stop].clone()


def _check_head(content: bytes, open_round: EdgeRound, seat: Seat, kit: ModelKit) -> ArrivedHead:
    """A client's head in a safetensors file. It must have exactly the client's units, every number must be finite and at
    most its unit's largest value, and buffers must be in their legal ranges; anything else is a WireError."""
    like, train = open_round.state[0 : seat.cut], kit.config.train
    arrived = kit.head_files.unpack(content, like)
    try:
        check_growth(arrived.head, open_round.largest_values)
    except Diverged as error:
        raise WireError("diverged", str(error)) from None
    steps = RoundSteps(seat.num_samples, train.batch_size, train.local_epochs, open_round.round).count
    kit.legal_ranges.check(arrived.head, like, steps, open_round.weight)
    return arrived


class ClientAtFault(Exception):
    """One client's trained units cannot be summed: the round goes on without the client."""

    def __init__(self, seat: int, sentence: str) -> None:
        super().__init__(sentence)
        self.seat, self.sentence = seat, sentence


def sum_kept_clients(
    state: UnitState, sides: Mapping[int, FinishedSide], kept: Sequence[int], factors: Factors | None = None
) -> Server:
    """A server that has summed the trained units of the kept clients. state: the units that the round began with. sides:
    each client's trained units on this server, with its weight. factors: by which updates are clipped first.

    The grid of the sums follows from the samples of the kept clients, as in a simulation that keeps the same clients."""
    num_samples = sum(sides[seat].weight for seat in kept)
    server = Server(state, PartialSum.zero(state, num_samples))
    for seat in kept:
        side = sides[seat] if factors is None else factors.scaled(seat, state, sides[seat])
        server.finish(seat, side.state, side.weight)
        try:
            server.commit([seat])
        except Exception as error:  # whatever it is, it is this client's alone
            raise ClientAtFault(seat, str(error)) from error
    return server


class EdgeProcess:
    """The edge server's handlers."""

    def __init__(
        self, folder: Path, compute: ComputeQueue, log: Log, metrics: Metrics, model_path: str | None = None
    ) -> None:
        """model_path: of a config of transformers, where the run trains one."""
        self.folder, self.compute, self.log, self.metrics = folder, compute, log, metrics
        self.model_path = model_path
        self.instance = secrets.token_hex(8)
        self.begin_message: Begin | None = None
        self.kit: ModelKit | None = None
        self.store: UnitStore | None = None  # the run's rounds on the disk
        self.states: dict[int, UnitState] = {}  # the run's states in memory, by round
        self.open_round: EdgeRound | None = None

    def methods(self) -> dict[str, ServedMethod]:
        main_only, clients_only = ("main",), ("client",)
        return {
            "Begin": ServedMethod("unary_unary", main_only, self.begin_run),
            "TakeUnits": ServedMethod("stream_stream", main_only, self.take_units),
            "GiveUnits": ServedMethod("stream_stream", main_only, self.give_units),
            "Open": ServedMethod("unary_unary", main_only, self.start_round),
            "Await": ServedMethod("unary_unary", main_only, self.await_heads),
            "AskNorms": ServedMethod("unary_unary", main_only, self.tell_norms),
            "Clip": ServedMethod("unary_unary", main_only, self.take_factors),
            "Swap": ServedMethod("stream_stream", main_only, self.swap_sums),
            "Fetch": ServedMethod("stream_stream", clients_only, self.send_head),
            "Upload": ServedMethod("stream_stream", clients_only, self.take_head),
            "Probe": ServedMethod("unary_unary", ("main", "client"), answer_probe),
        }

    async def begin_run(self, request: bytes, context: Any) -> bytes:
        """Learn which model is trained, and answer which rounds and units this server holds."""
        message, _ = expect_message(request, Begin)
        if message != self.begin_message or self.kit is None:
            config = received_config(message.settings, model_path=self.model_path)
            shape = tuple(message.input_shape)
            kit = await self.compute.run(
                lambda: made_within_memory(lambda: make_kit(config, shape, message.num_classes))
            )
            store = UnitStore(self.folder / message.run)
            self.states = await self.compute.run(lambda: _read_rounds(store, kit))
            self.begin_message, self.kit, self.store, self.open_round = message, kit, store, None
            self.log.event("the main server is here", rounds=sorted(self.states))
        rounds = sorted(self.states)
        stops = [self.states[round].stop for round in rounds]
        return pack_message(Standing(self.instance, self.kit.fingerprint, rounds, stops, own_versions()))

    def _begun_kit(self) -> ModelKit:
        if self.kit is None:
            raise WireError("order", "the edge server was restarted and waits for the main server's Begin")
        return self.kit

    async def take_units(self, messages: Any, context: Any) -> None:
        """Take units that the main server has and this server lacks."""
        kit = self._begun_kit()
        message, _ = expect_message(await read_request(context), TakeUnits)
        before = self.states.get(message.round)
        if (
            message.start != (before.stop if before is not None else 0)
            or not message.start <= message.stop <= kit.num_units
        ):
            raise WireError("order", f"units from {message.start} do not follow on what the edge server holds")
        like = kit.empty(message.start, message.stop)
        more = unpack_state(await collect(lambda: read_request(context), most_state_bytes(like)), like)
        whole = more if before is None else _join_units(before, more)
        await self._save_state(message.round, whole)
        await context.write(pack_message(Done()))

    async def give_units(self, messages: Any, context: Any) -> None:
        """Send units that the main server lacks, for a new plan or for a snapshot."""
        message, _ = expect_message(await read_request(context), GiveUnits)
        state = self.states.get(message.round)
        if state is None or not 0 <= message.start <= message.stop <= state.stop:
            raise WireError("order", f"the edge server does not hold units to {message.stop} of round {message.round}")
        await send(context, state_bytes(state[message.start : message.stop]))

    async def start_round(self, request: bytes, context: Any) -> bytes:
        """Begin a round, or hand out heads for an evaluation."""
        self._begun_kit()
        message, _ = expect_message(request, Open)
        state, deepest = self.states.get(message.round), max((seat.cut for seat in message.seats), default=0)
        if state is None or state.stop < deepest:
            raise WireError("order", f"the edge server does not hold {deepest} units of round {message.round}")
        heads = state[0:deepest]
        if self.open_round is not None:
            self.open_round.end_streams()
        self.open_round = EdgeRound(
            message.round, message.attempt, heads, {seat.name: seat for seat in message.seats}, largest_allowed(heads)
        )
        event = "evaluation begins" if message.evaluates else "round begins"
        shown_round = message.round if message.evaluates else message.round + 1
        self.log.event(event, round=shown_round, clients=len(message.seats), units=deepest)
        return pack_message(Done())

    def _round_of_attempt(self, attempt: str) -> EdgeRound:
        """The open round. Any other attempt than its own is refused."""
        if self.open_round is None or self.open_round.attempt != attempt:
            raise WireError("order", "that attempt at the round is not open at the edge server")
        return self.open_round

    async def await_heads(self, request: bytes, context: Any) -> bytes:
        """Tell whose heads are complete and whose were refused, as soon as there is news or the asked time is over."""
        message, _ = expect_message(request, Await)
        open_round = self._round_of_attempt(message.attempt)
        async with open_round.news:
            try:
                more = lambda: len(open_round.finished) + len(open_round.refused) > message.known  # noqa: E731
                await asyncio.wait_for(open_round.news.wait_for(more), message.wait_s)
            except TimeoutError:
                pass
        seats, bad = sorted(open_round.finished), sorted(open_round.refused)
        times = [open_round.model_up_s[seat] for seat in seats]
        reasons, sentences = ([open_round.refused[seat][k] for seat in bad] for k in (0, 1))
        return pack_message(
            Have(self.instance, seats, times, bad, reasons, sentences, open_round.up_bytes, open_round.down_bytes)
        )

    def _find_seat(self, attempt: str) -> tuple[EdgeRound, Seat]:
        """The round and the seat of the client that calls."""
        open_round, name = self._round_of_attempt(attempt), caller().name
        seat = open_round.seats.get(name)
        if seat is None:
            raise WireError("order", f"{name} has no part in this round")
        return open_round, seat

    async def send_head(self, messages: Any, context: Any) -> None:
        """Send a client its head."""
        message, _ = expect_message(await read_request(context), Fetch)
        open_round, seat = self._find_seat(message.attempt)
        head = open_round.state[0 : seat.cut]
        with open_round.sole_stream("fetch", seat.seat):
            await send(context, state_bytes(head))
        open_round.down_bytes += head.num_bytes
        self.metrics.carried("client_edge", "down", head.num_bytes)

    async def take_head(self, messages: Any, context: Any) -> None:
        """Take a client's trained head and check it. A client whose head is refused is out of the round."""
        message, _ = expect_message(await read_request(context), Upload)
        open_round, seat = self._find_seat(message.attempt)
        if seat.seat in open_round.refused:
            raise WireError("stale", f"a head of {seat.name} was refused in this round")
        like, began_s = open_round.state[0 : seat.cut], time.perf_counter()
        try:
            with open_round.sole_stream("upload", seat.seat):
                content = await collect(lambda: read_request(context), self._begun_kit().head_files.most_bytes(like))
                took_s = time.perf_counter() - began_s
                arrived = await self.compute.run(lambda: self._checked_head(content, open_round, seat))
        except WireError as error:
            await self._refuse_head(open_round, seat, error)
            raise
        if open_round is not self.open_round:
            raise WireError("stale", "the round was ended, or opened anew, during the upload; upload again")
        async with open_round.news:
            # A client whose answer was lost uploads again; the head of before stays.
            if seat.seat not in open_round.finished:
                open_round.finished[seat.seat] = FinishedSide(arrived.head, float(seat.weight))
                open_round.model_up_s[seat.seat] = took_s
                open_round.up_bytes += arrived.num_bytes
            self.metrics.carried("client_edge", "up", arrived.num_bytes)
            open_round.news.notify_all()
        await context.write(pack_message(Uploaded()))

    def _checked_head(self, content: bytes, open_round: EdgeRound, seat: Seat) -> ArrivedHead:
        """As `_check_head`; whatever else goes wrong with a head is this client's alone, too."""
        try:
            return _check_head(content, open_round, seat, self._begun_kit())
        except WireError:
            raise
        except Exception as error:
            self.log.event("a head cannot be checked", "error", error=error, client=seat.name)
            raise WireError("other", "the head cannot be checked; the edge server's log says why") from None

    async def _refuse_head(self, open_round: EdgeRound, seat: Seat, error: WireError) -> None:
        if error.reason in ("ended", "replaced") or seat.seat in open_round.finished or seat.seat in open_round.refused:
            return  # the stream broke and the client may upload again, or its part in the round is settled already
        self.log.event(
            "client dropped",
            "warning",
            client=seat.name,
            round=open_round.round + 1,
            reason=error.reason,
            why=error.sentence,
        )
        self.metrics.dropped(error.reason)
        async with open_round.news:
            open_round.refused[seat.seat] = (error.reason, error.sentence[:1000])
            open_round.news.notify_all()

    async def tell_norms(self, request: bytes, context: Any) -> bytes:
        """Tell how long the updates of these clients' heads are."""
        kit, message = self._begun_kit(), expect_message(request, AskNorms)[0]
        open_round, clip = self._round_of_attempt(message.attempt), kit.clip
        self._check_kept(open_round, message.kept)
        if clip is None:
            raise WireError("order", "this run does not clip updates (train.clip_norm)")
        state, heads = open_round.state, open_round.finished
        return pack_message(Norms(await self.compute.run(lambda: side_norms(clip, state, heads, message.kept))))

    async def take_factors(self, request: bytes, context: Any) -> bytes:
        """Learn what the updates of these clients are multiplied with in the swap that follows."""
        kit, message = self._begun_kit(), expect_message(request, Clipped)[0]
        open_round = self._round_of_attempt(message.attempt)
        self._check_kept(open_round, message.kept)
        if kit.clip is None or len(message.factors) != len(message.kept):
            raise WireError(
                "order", f"{len(message.factors)} factors for {len(message.kept)} clients of a run, clipped or not"
            )
        open_round.factors = Factors(kit.clip, dict(zip(message.kept, message.factors)))
        return pack_message(Done())

    def _check_kept(self, open_round: EdgeRound, kept: Sequence[int]) -> None:
        """Refuse a list of clients whose heads are not complete at the edge server, and one that names a client twice."""
        if not set(kept) <= open_round.finished.keys() or len(set(kept)) < len(kept):
            raise WireError("order", "a client is to be kept whose head is not complete at the edge server")

    async def swap_sums(self, messages: Any, context: Any) -> None:
        """End a round: both servers sum the same clients, swap the sums of the common units, and divide."""
        message, _ = expect_message(await read_request(context), Swap)
        open_round = self._round_of_attempt(message.attempt)
        self._check_kept(open_round, message.kept)
        known = open_round.factors.by_seat.keys() if open_round.factors is not None else set[int]()
        if self._begun_kit().clip is not None and not set(message.kept) <= known:
            raise WireError("order", "updates are clipped in this run, and a client's factor is not known yet")
        if not 0 <= message.start <= message.stop <= open_round.state.stop and message.start < message.stop:
            raise WireError("order", f"common units {message.start} to {message.stop} are not held by the edge server")
        try:
            server = await self._swap_and_merge(open_round, message, context)
        except ClientAtFault as fault:
            await self._withdraw_head(open_round, fault)
            raise WireError("head_withdrawn", f"a head cannot be summed: {fault.sentence}") from None
        after = await self.compute.run(server.close)
        await self._save_state(open_round.round + 1, after)
        self.states = {
            round: state for round, state in self.states.items() if open_round.round <= round <= open_round.round + 1
        }
        event = "round summed anew" if open_round.is_summed else "round complete"
        self.log.event(event, round=open_round.round + 1, clients=len(message.kept))
        if not open_round.is_summed:
            self.metrics.completed(open_round.round + 1, time.perf_counter() - open_round.began_s)
        open_round.is_summed = True
        await context.write(pack_message(Done()))

    async def _withdraw_head(self, open_round: EdgeRound, fault: ClientAtFault) -> None:
        """A head that was complete cannot be summed: the main server hears of it when it asks for the heads again."""
        seat = next(seat for seat in open_round.seats.values() if seat.seat == fault.seat)
        open_round.finished.pop(fault.seat, None)
        await self._refuse_head(open_round, seat, WireError("other", fault.sentence))

    async def _swap_and_merge(self, open_round: EdgeRound, message: Swap, context: Any) -> Server:
        """The server with the sums of both servers. The main server's sum arrives while this server makes and sends its own."""

        def sum_heads() -> Server:
            return sum_kept_clients(open_round.state, open_round.finished, sorted(message.kept), open_round.factors)

        def sum_up() -> tuple[Server, PartialSum, bytes]:
            server = sum_heads()
            edge_sum = server.send(message.start, message.stop)
            return server, edge_sum, sum_bytes(edge_sum)

        async def give() -> tuple[Server, PartialSum]:
            server, edge_sum, content = await self.compute.run(sum_up)
            await send(context, content)
            return server, edge_sum

        if message.start >= message.stop:
            return await self.compute.run(sum_heads)
        limit = most_sum_bytes(open_round.state[message.start : message.stop])
        content, (server, edge_sum) = await both_results(collect(lambda: read_request(context), limit), give())
        await self.compute.run(lambda: server.merge(read_sum(content, edge_sum)))
        return server

    async def _save_state(self, round: int, state: UnitState) -> None:
        """Keep a state: first on the disk, then in memory."""
        kit, store = self._begun_kit(), self.store
        assert store is not None
        await self.compute.run(lambda: store.save(round, state, {"fingerprint": kit.fingerprint}))
        self.states[round] = state


def _read_rounds(store: UnitStore, kit: ModelKit) -> dict[int, UnitState]:
    """The rounds of a run that are on the disk."""
    states = {}
    for round in store.rounds():
        states[round], notes = store.load(round, kit)
        if notes.get("fingerprint") != kit.fingerprint:
            raise InputError(
                "the edge server holds rounds of this run with another model; is a plugin another one now?"
            )
    return states
