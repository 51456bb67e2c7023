"""The state of an open round at the main server, and of an open evaluation.

`MainRound` knows who takes part, who is complete, who was dropped and why. It has a `Tail` for each client: the units above
the client's cut, which are trained here. Every batch is checked (`check_batch`), stepped once, and answered; a batch that comes
again after a broken stream gets the same answer again. `SpareTails` keeps working copies from round to round. `Evaluation`
collects what the clients' own test samples say of the averaged model. Nothing here waits or sends: `main_server` and the
handlers do.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hsfl.codec_table import DOWN
from hsfl.data.passes import RoundSteps
from hsfl.deploy.main.coded_judgement import CodecAtCut, Judgement, Tallies
from hsfl.deploy.main.cut_planner import RoundPlan
from hsfl.deploy.model_kit import ModelKit
from hsfl.deploy.wire.client_messages import Batch, End, Evaluate, Gradient, Round
from hsfl.deploy.wire.coded_tensors import coded_bytes, is_coded_as, pack_coded, unpack_coded
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.messages import pack_message
from hsfl.deploy.wire.server_messages import Have, Seat
from hsfl.models.state import UnitState
from hsfl.training.aggregate import Diverged, check_growth, largest_allowed
from hsfl.training.codecs.codec import Codec
from hsfl.training.link import draws_of
from hsfl.training.roles import FinishedSide, Session
from hsfl.training.step import Part, StepKey, learning_rate


def check_batch(kit: ModelKit, cut: int, num_samples: int, tensors: dict[str, Tensor]) -> None:
    """Refuse smashed data and labels whose shapes, types or values cannot be those of so many samples at this cut."""
    smashed, labels = tensors["smashed"], tensors["labels"]
    wanted = (num_samples, *kit.shapes[cut])
    if tuple(smashed.shape) != wanted or smashed.dtype != kit.initial.floats.dtype:
        raise WireError("shape", f"smashed data are {smashed.dtype} {tuple(smashed.shape)}, not {wanted}")
    if labels.shape != wanted[:1] or labels.dtype != torch.int64:
        raise WireError("shape", f"labels are {labels.dtype} {tuple(labels.shape)}, not int64 {wanted[:1]}")
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < kit.num_classes):
        raise WireError("protocol", f"a label outside 0 to {kit.num_classes - 1}")
    if not bool(torch.isfinite(smashed).all()):
        raise WireError("not_finite", "smashed data with a number that is NaN or infinite")


MOST_LOSS = 1e4  # of a sample in the mean; where a model guesses classes it is 2 to 10, and of a model beyond hope some hundreds


def checked_loss(loss_total: float | None, num_samples: int) -> float:
    """A loss that only the client knows, summed over so many samples, if a model can have it."""
    if loss_total is None:
        raise WireError("protocol", "no loss from a client that holds all units")
    if not 0 <= loss_total <= MOST_LOSS * num_samples:
        raise WireError("diverged", f"a loss of {loss_total:.3g} over {num_samples} samples; lower train.lr")
    return loss_total


@dataclass(eq=False)
class Tail:
    """One client of an open round, and the units above its cut."""

    kit: ModelKit
    round: int
    seat: int
    name: str
    cut: int
    num_samples: int
    state: UnitState  # units [cut, num_units) as the round began
    working_copy: Part | None  # in which the units are trained; None: the client holds all units
    lr: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    codec: str | None = None  # of smashed data and gradients, as the order has it
    weight: int | None = None  # what the client counts in the average, where that is not num_samples
    dropped: str | None = None  # why the client was dropped
    end: End | None = None  # what the client said when its batches were done

    def __post_init__(self) -> None:
        train = self.kit.config.train
        self.steps = RoundSteps(self.num_samples, train.batch_size, train.local_epochs, self.round)
        self.codecs = self.kit.codecs_of(self.codec)
        self.restart()

    def restart(self) -> None:
        """Begin the client's round anew: nothing of it has been summed yet."""
        self.step, self.end, self.last_answer = 0, None, b""
        self.began_s, self.loss_total = time.perf_counter(), 0.0  # the losses of the steps here, summed over samples
        self.server_s = self.waited_s = 0.0
        self.up_bytes = self.down_bytes = 0
        self.stream: object = None  # the stream that may speak for the client
        self.fresh_stream = False
        if self.working_copy is not None:
            self.working_copy.begin(self.state, self.lr)
            self.session = Session(self.working_copy)

    @property
    def test_codec(self) -> CodecAtCut | None:
        """Through what the model's smashed data go when this client uses it; None where nothing is coded."""
        return None if self.codecs.up is None or self.working_copy is None else CodecAtCut(self.cut, self.codecs.up)

    @property
    def counts_as(self) -> int:
        """What the client counts in the average."""
        return self.num_samples if self.weight is None else self.weight

    @property
    def side(self) -> FinishedSide:
        """The trained units, with the client's weight."""
        return FinishedSide(self.state if self.working_copy is None else self.working_copy.state, float(self.counts_as))

    def enter(self, stream: object) -> int:
        """A stream of the client begins; the one before no longer counts. Returns the step that comes next."""
        self.stream, self.fresh_stream = stream, True
        return self.step

    def check_stream(self, stream: object) -> None:
        """Refuse what comes late on a stream that another one has replaced; the client has done nothing wrong."""
        if stream is not self.stream:
            raise WireError("replaced", "a message on a stream that another one has replaced; open a new one")

    def is_repeated(self, message: Batch, stream: object) -> bool:
        """Whether this is the last batch again, which a new stream may send first. Any other batch out of order is
        refused."""
        self.check_stream(stream)
        first, self.fresh_stream = self.fresh_stream, False
        if first and self.last_answer and message.step == self.step - 1:
            return True
        if message.step != self.step or self.step >= self.steps.count or self.end is not None:
            raise WireError("order", f"step {message.step} where {self.step} comes next")
        return False

    def check(self, tensors: dict[str, Tensor]) -> None:
        """Refuse a batch whose shapes, types or values this step cannot have."""
        check_batch(self.kit, self.cut, self.steps.size(self.step), tensors)

    def takes(self, names: Iterable[str]) -> bool:
        """Whether a batch may have tensors with these names: labels, and smashed data or the arrays of their payload."""
        others = set(names) - {"labels"}
        return len(others) < len(set(names)) and bool(others) and all(is_coded_as("smashed", name) for name in others)

    def decode(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The smashed data and labels of a batch."""
        shape = (self.steps.size(self.step), *self.kit.shapes[self.cut])
        smashed = unpack_coded("smashed", tensors, self.codecs.up, shape, self.kit.initial.floats.dtype)
        return {"smashed": smashed, "labels": tensors["labels"]}

    def compute(self, tensors: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The step itself, for the compute thread: the loss, and the gradient of the smashed data as it travels."""
        assert self.working_copy is not None
        batch = self.decode(tensors)
        self.check(batch)
        key = StepKey(self.kit.config.seed, self.seat, *self.steps.place(self.step))
        loss, gradient = self.session.step(batch["smashed"], batch["labels"], key, need_gradient=self.cut > 0)
        if not bool(torch.isfinite(loss)):
            raise WireError("diverged", f"the loss of step {self.step} is no number; lower train.lr")
        return loss, pack_coded("gradient", gradient, self.codecs.down, DOWN, draws_of(key, DOWN))

    def answer(self, loss: Tensor, gradient: dict[str, Tensor], waited_s: float, took_s: float, up_bytes: int) -> bytes:
        """Count the step and keep its answer, until the next batch shows that it arrived. gradient: as it travels."""
        self.last_answer = pack_message(Gradient(self.step, took_s, waited_s), {"loss": loss} | gradient)
        self.loss_total = loss.item() * self.steps.size(self.step) + self.loss_total
        self.step += 1
        self.server_s += took_s
        self.waited_s += waited_s
        self.up_bytes += up_bytes
        self.down_bytes += coded_bytes("gradient", gradient)
        return self.last_answer

    def finish(self, message: End) -> None:
        """Take the client's word that all its batches are done, if the counts agree and the weights make sense."""
        due = self.steps.count
        steps = due if self.working_copy is not None else 0
        if self.step != steps or message.steps != due or message.num_samples != self.steps.total_samples:
            raise WireError(
                "order",
                f"the end after {message.steps} steps, {self.step} of them here, where {due} are due",
            )
        try:
            check_growth(self.side.state, largest_allowed(self.state))
        except Diverged as error:
            raise WireError("diverged", str(error)) from None
        if self.working_copy is None:
            self.loss_total = checked_loss(message.loss_total, message.num_samples)
        self.end, self.last_answer = self._within_round(message), b""

    def _within_round(self, message: End) -> End:
        """The client's word, in which no seconds are more than those that have passed here since its round began."""
        most_s = time.perf_counter() - self.began_s
        names = ("client_s", "exchange_s", "model_down_s")
        return replace(message, **{name: min(getattr(message, name), most_s) for name in names})

    def phases(self, model_up_s: float, up_share: float) -> dict[str, float]:
        """Measured seconds of the round, by phase; waiting for other clients' steps is a phase of its own. model_up_s:
        seconds of the head's upload. up_share: the upload's share of the seconds that exchanges take on the link."""
        assert self.end is not None
        moved_s = max(self.end.exchange_s - self.server_s - self.waited_s, 0.0)
        return {
            "client": self.end.client_s,
            "smashed": moved_s * up_share,
            "server": self.server_s,
            "waiting": self.waited_s,
            "gradient": moved_s * (1 - up_share),
            "model_up": model_up_s,
            "model_down": self.end.model_down_s,
        }


class SpareTails:
    """Working copies of tails, used again from round to round: one for each client that is active."""

    def __init__(self, kit: ModelKit) -> None:
        self._kit, self._free = kit, dict[int, list[Part]]()

    def take(self, cut: int) -> Part | None:
        if cut == self._kit.num_units:
            return None
        free = self._free.setdefault(cut, [])
        return free.pop() if free else self._kit.make_part(cut, self._kit.num_units)

    def give_back(self, cut: int, working_copy: Part | None) -> None:
        if working_copy is not None:
            self._free.setdefault(cut, []).append(working_copy)

    def keep_only(self, cuts: Iterable[int]) -> None:
        """Forget copies that clients with these cuts, one cut for each client, do not need."""
        self._free = {cut: self._free.get(cut, [])[:count] for cut, count in Counter(cuts).items()}


@dataclass(eq=False)
class MainRound:
    """An open round."""

    round: int
    state: UnitState  # units [min cut, num_units)
    plan: RoundPlan
    tails: dict[int, Tail]  # by seat
    deadline_s: float  # when tau is over, by the event loop's clock
    spare_tails: SpareTails
    attempt: str = field(default_factory=lambda: secrets.token_hex(8))
    model_up_s: dict[int, float] = field(default_factory=dict)  # of complete heads, by seat
    head_report: Have | None = None  # what the edge server last said of the heads
    edge_stop: int = 0  # the edge server holds the units [0, edge_stop): up to the deepest cut when it opened the round
    drops: dict[int, str] = field(default_factory=dict)  # reasons, by seat
    agreed: list[int] = field(default_factory=list)  # seats whose sides are summed, even if the client goes now
    postponed_drops: list[tuple[int, str, str]] = field(default_factory=list)  # of agreed clients, if the swap fails
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ending_s: dict[str, float] = field(default_factory=dict)  # seconds of each part of the round's end, so far
    counted: Mapping[int, str] = field(default_factory=dict)  # the attempt in which each seat was counted last
    was_disturbed: bool = False  # whether a server was away, so that its seconds say nothing of other rounds

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Count what happens inside as seconds of a part of the round's end, but for what is counted as another part."""
        began_s, before_s = time.perf_counter(), sum(self.ending_s.values())
        try:
            yield
        finally:
            others_s = sum(self.ending_s.values()) - before_s
            self.ending_s[part] = self.ending_s.get(part, 0.0) + time.perf_counter() - began_s - others_s

    @property
    def cuts(self) -> list[int]:
        return [tail.cut for tail in self.tails.values()]

    @property
    def common(self) -> tuple[int, int]:
        """The units that both servers hold in this round: start and stop."""
        start = min(self.cuts)
        return start, max(start, self.edge_stop)

    @property
    def test_codecs(self) -> list[CodecAtCut | None]:
        """Through what the model's smashed data go at each client that began the round."""
        return [tail.test_codec for _, tail in sorted(self.tails.items())]

    def seats(self) -> list[Seat]:
        """The clients that are still in the round, as the edge server must know them."""
        return [
            Seat(t.seat, t.name, t.cut, t.num_samples, t.counts_as) for t in self.tails.values() if t.dropped is None
        ]

    def order(self, seat: int) -> Round:
        """The order for a client."""
        tail = self.tails[seat]
        return Round(self.round, self.attempt, tail.cut, tail.codec, self.counted.get(seat))

    def is_complete(self, seat: int) -> bool:
        """Whether both sides of the client are complete, as far as the main server knows."""
        return self.tails[seat].end is not None and seat in self.model_up_s

    def waiting(self) -> list[int]:
        """Clients that are neither complete nor dropped."""
        return [seat for seat, tail in self.tails.items() if tail.dropped is None and not self.is_complete(seat)]

    def kept(self) -> list[int]:
        return [seat for seat, tail in sorted(self.tails.items()) if tail.dropped is None and self.is_complete(seat)]

    def drop(self, seat: int, reason: str, sentence: str) -> bool:
        """Leave a client out of the round; returns whether it was in until now."""
        tail = self.tails[seat]
        if tail.dropped is not None:
            return False
        tail.dropped, self.drops[seat] = sentence, reason
        self.changed.set()
        return True


def begin_round(
    kit: ModelKit,
    round: int,
    state: UnitState,
    plan: RoundPlan,
    seats: dict[int, tuple[str, int]],
    spare_tails: SpareTails,
    deadline_s: float,
) -> MainRound:
    """A round with these clients. seats: name and number of samples by seat. deadline_s: by the event loop's clock.
    Call this on the compute thread: a step of the round before may still use a working copy that this round takes."""
    lr, tails = learning_rate(kit.config.train, round), {}
    spare_tails.keep_only(plan.cuts[seat] for seat in seats)
    for seat, (name, num_samples) in seats.items():
        cut = plan.cuts[seat]
        tail_state = state[cut : state.stop]
        copy, codec = spare_tails.take(cut), plan.codec(seat)
        tails[seat] = Tail(kit, round, seat, name, cut, num_samples, tail_state, copy, lr, codec=codec)
    return MainRound(round, state, plan, tails, deadline_s, spare_tails)


@dataclass(eq=False)
class Evaluation:
    """Who takes part, and what was counted."""

    round: int  # rounds that the model has seen
    seats: dict[str, Seat]  # by name
    attempt: str = field(default_factory=lambda: secrets.token_hex(8))
    codecs: Mapping[int, Codec] = field(
        default_factory=dict
    )  # of smashed data, by seat; test samples travel uncoded and are judged with and without it
    tallies: dict[int, Tallies] = field(default_factory=dict)  # of clients whose test samples are all counted, by seat
    entered: set[int] = field(default_factory=set)  # seats that have opened their stream; each has one
    gone: set[int] = field(default_factory=set)  # seats that are not waited for any longer, done or not
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def order(self, seat: Seat) -> Evaluate:
        """The order that tells a client to send its test samples."""
        return Evaluate(self.round, self.attempt, seat.cut)

    def finish(self, seat: int, tally: Tallies) -> None:
        """All test samples of a client are counted."""
        self.tallies[seat] = tally
        self._check_over()

    def leave(self, seat: int) -> None:
        """Stop waiting for a client. Its samples count only if it has finished."""
        self.gone.add(seat)
        self._check_over()

    def _check_over(self) -> None:
        if all(seat.seat in self.tallies or seat.seat in self.gone for seat in self.seats.values()):
            self.over.set()

    @property
    def num_samples(self) -> int:
        return sum(tallies.plain.num_samples for tallies in self.tallies.values())

    def judgement(self) -> Judgement:
        """The model's quality over the samples of all clients that have finished, if they have samples."""
        tallies = [tallies for _, tallies in sorted(self.tallies.items())] if self.num_samples else []
        return Judgement.of(tallies, bool(self.codecs))
