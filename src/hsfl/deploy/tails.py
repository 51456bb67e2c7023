"""The main server's side of one client's round: every batch is checked, stepped once, and answered; a step asked for again after a
broken stream gets the answer of before."""

import asyncio
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hsfl.data.passes import RoundSteps
from hsfl.deploy.client_messages import Batch, End, Gradient
from hsfl.deploy.frames import WireError
from hsfl.deploy.kit import Kit
from hsfl.deploy.messages import pack
from hsfl.models.state import UnitState
from hsfl.training.aggregate import Diverged, check_growth, most_after
from hsfl.training.roles import Finished, Session
from hsfl.training.step import Part, StepKey


def check_batch(kit: Kit, cut: int, num_samples: int, tensors: dict[str, Tensor]) -> None:
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


@dataclass(eq=False)
class Tail:
    """One client of an open round, and the units above its cut."""

    kit: Kit
    round: int
    seat: int
    name: str
    cut: int
    num_samples: int
    state: UnitState  # units [cut, num_units) as the round began
    part: Part | None  # the working copy; None: the client holds all units
    lr: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    dropped: str | None = None  # why the client was dropped
    end: End | None = None  # what the client said when its batches were done

    def __post_init__(self) -> None:
        train = self.kit.config.train
        self.steps = RoundSteps(self.num_samples, train.batch_size, train.local_epochs, self.round)
        self.restart()

    def restart(self) -> None:
        """Begin the client's round anew: nothing of it has been summed yet."""
        self.step, self.end, self.last = 0, None, b""
        self.server_s = self.waited_s = 0.0
        self.up_bytes = self.down_bytes = 0
        self.stream: object = None  # the stream that may speak for the client
        self.fresh_stream = False
        if self.part is not None:
            self.part.begin(self.state, self.lr)
            self.session = Session(self.part)

    @property
    def side(self) -> Finished:
        """The trained units, with the client's weight."""
        return Finished(self.state if self.part is None else self.part.state, float(self.num_samples))

    def enter(self, stream: object) -> int:
        """A stream of the client begins; the one before no longer counts. Returns the step that comes next."""
        self.stream, self.fresh_stream = stream, True
        return self.step

    def check_stream(self, stream: object) -> None:
        """Refuse what comes late on a stream that another one has replaced; the client has done nothing wrong."""
        if stream is not self.stream:
            raise WireError("replaced", "a message on a stream that another one has replaced; open a new one")

    def repeats(self, message: Batch, stream: object) -> bool:
        """Whether this is the last batch again, which a new stream may send first. Any other batch out of order is
        refused."""
        self.check_stream(stream)
        first, self.fresh_stream = self.fresh_stream, False
        if first and self.last and message.step == self.step - 1:
            return True
        if message.step != self.step or self.step >= self.steps.count or self.end is not None:
            raise WireError("order", f"step {message.step} where {self.step} comes next")
        return False

    def check(self, tensors: dict[str, Tensor]) -> None:
        """Refuse a batch whose shapes, types or values this step cannot have."""
        check_batch(self.kit, self.cut, self.steps.size(self.step), tensors)

    def compute(self, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The step itself, for the compute thread: the loss and the gradient of the smashed data."""
        assert self.part is not None
        self.check(tensors)
        key = StepKey(self.kit.config.seed, self.seat, *self.steps.place(self.step))
        loss, gradient = self.session.step(tensors["smashed"], tensors["labels"], key, need_gradient=self.cut > 0)
        if not bool(torch.isfinite(loss)):
            raise WireError("diverged", f"the loss of step {self.step} is no number; lower train.lr")
        return loss, gradient

    def answer(self, loss: Tensor, gradient: Tensor, waited_s: float, took_s: float, up_bytes: int) -> bytes:
        """Count the step and keep its answer, until the next batch shows that it arrived."""
        self.last = pack(Gradient(self.step, took_s, waited_s), {"loss": loss, "gradient": gradient})
        self.step += 1
        self.server_s += took_s
        self.waited_s += waited_s
        self.up_bytes += up_bytes
        self.down_bytes += gradient.nbytes
        return self.last

    def finish(self, message: End) -> None:
        """Take the client's word that all its batches are done, if the counts agree and the weights make sense."""
        due = self.steps.count
        steps = due if self.part is not None else 0
        if self.step != steps or message.steps != due or message.num_samples != self.steps.total_samples:
            raise WireError(
                "order",
                f"the end after {message.steps} steps, {self.step} of them here, where {due} are due",
            )
        try:
            check_growth(self.side.state, most_after(self.state))
        except Diverged as error:
            raise WireError("diverged", str(error)) from None
        self.end, self.last = message, b""

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
