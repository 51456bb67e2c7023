"""Every message of the protocol: a number, and a record of its fields. docs/protocol.md says who sends which, and when.

Rounds count from 0 on the wire. A seat is a client's number in the run, 0 to K - 1. An attempt is the name of one try at a round:
what belongs to an attempt that is over is refused.
"""

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast

from pydantic import ConfigDict, Field, with_config
from torch import Tensor

from hsfl.deploy import frames
from hsfl.deploy.frames import Frame, WireError

Text = Annotated[str, Field(max_length=4096)]
Id = Annotated[str, Field(max_length=128)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Small = Annotated[int, Field(ge=0, le=2**31)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False)]
Finite = Annotated[float, Field(ge=-1e300, le=1e300, allow_inf_nan=False)]
Units = Annotated[list[Small], Field(max_length=4096)]
strict = with_config(ConfigDict(extra="forbid"))


@strict
@dataclass(frozen=True)
class Hello:
    """Client to main server, first on the stream Attend."""

    name: Id


@strict
@dataclass(frozen=True)
class Welcome:
    """Main server to client: the client's seat, and all that it needs to build the model and measure itself."""

    seat: Small
    settings: Annotated[str, Field(max_length=1 << 18)]  # JSON, the settings of the run that a client needs
    input_shape: Units
    num_classes: Small


@strict
@dataclass(frozen=True)
class Measured:
    """What a client measured of itself. Bits per second and FLOPs per second; memory in bits, if the system says it."""

    flops_per_s: Rate
    main_up_bps: Rate
    main_down_bps: Rate
    edge_up_bps: Rate
    edge_down_bps: Rate
    memory_bits: Rate | None


@strict
@dataclass(frozen=True)
class Ready:
    """Client to main server: it can train. holds: the attempt that it is in the middle of, after a broken connection."""

    fingerprint: Id
    class_counts: Annotated[list[Count], Field(max_length=1 << 16)]
    measured: Measured
    holds: Id | None


@strict
@dataclass(frozen=True)
class Round:
    """Main server to client: take part in a round. Each token is used once.

    For an attempt that the client holds already it means: do what is still missing, with these tokens; where nothing is missing, the
    edge server has lost the head, so upload it again."""

    round: Small
    attempt: Id
    cut: Small
    train_token: Id
    fetch_token: Id
    upload_token: Id


@strict
@dataclass(frozen=True)
class AskTokens:
    """Client to main server: fresh tokens for the attempt, since a stream broke. Answered by Round."""

    attempt: Id


@strict
@dataclass(frozen=True)
class RoundOver:
    """Main server to client: the round has ended, with or without the client's update."""

    round: Small
    attempt: Id
    kept: bool
    why: Text


@strict
@dataclass(frozen=True)
class Leave:
    """Client to main server: it goes, on purpose."""


@strict
@dataclass(frozen=True)
class Stop:
    """Main server to client: there are no more rounds."""

    why: Text


@strict
@dataclass(frozen=True)
class Probe:
    """Client to either server, and back: so many bytes come and go, for the client to time."""

    answer_bytes: Annotated[int, Field(ge=0, le=1 << 22)]


@strict
@dataclass(frozen=True)
class Enter:
    """Client to main server, first on the stream Train."""

    attempt: Id
    token: Id


@strict
@dataclass(frozen=True)
class Entered:
    """Main server to client: the step that it expects next."""

    step: Count


@strict
@dataclass(frozen=True)
class Batch:
    """Client to main server, with the tensors `smashed` and `labels`."""

    step: Count


@strict
@dataclass(frozen=True)
class Gradient:
    """Main server to client, with the tensor `gradient` of the smashed data and `loss`; and how long the step and its wait took."""

    step: Count
    server_s: Seconds
    waited_s: Seconds


@strict
@dataclass(frozen=True)
class End:
    """Client to main server: all batches are done. loss_total: the sum over samples; seconds are the client's own."""

    steps: Count
    num_samples: Count
    loss_total: Finite
    client_s: Seconds  # of its own computing
    exchange_s: Seconds  # from a batch sent to its gradient received, the server's time included
    model_down_s: Seconds


@strict
@dataclass(frozen=True)
class Ended:
    """Main server to client: the tail is complete."""


@strict
@dataclass(frozen=True)
class Fetch:
    """Client to edge server: its head of the attempt, please. Answered by a model in chunks."""

    attempt: Id
    token: Id


@strict
@dataclass(frozen=True)
class Upload:
    """Client to edge server: its trained head, in the chunks that follow."""

    attempt: Id
    token: Id


@strict
@dataclass(frozen=True)
class Uploaded:
    """Edge server to client: the head is complete."""


@strict
@dataclass(frozen=True)
class Chunk:
    """A piece of a safetensors file, with the tensor `bytes`. total: bytes of the whole file."""

    at: Count
    total: Count


@strict
@dataclass(frozen=True)
class Begin:
    """Main server to edge server, before anything else: what is trained. Answered by Standing."""

    settings: Annotated[str, Field(max_length=1 << 18)]
    input_shape: Units
    num_classes: Small


@strict
@dataclass(frozen=True)
class Standing:
    """Edge server to main server: which rounds it can begin, and the units that it holds for each, `[0, stop)`."""

    instance: Id  # of the process: another one has lost the heads of an open round
    fingerprint: Id
    rounds: Annotated[list[Small], Field(max_length=8)]
    stops: Annotated[list[Small], Field(max_length=8)]
    contents: Annotated[list[Id], Field(max_length=8)]  # a hash of the state of each


@strict
@dataclass(frozen=True)
class Seat:
    """A client of a round, as the edge server must know it."""

    seat: Small
    name: Id
    cut: Small
    num_samples: Count


@strict
@dataclass(frozen=True)
class Open:
    """Main server to edge server: a round begins, or goes on after a restart. Answered by EdgeTokens."""

    round: Small
    attempt: Id
    seats: Annotated[list[Seat], Field(max_length=100_000)]


@strict
@dataclass(frozen=True)
class Allow:
    """Main server to edge server: fresh tokens for clients whose streams broke. Answered by EdgeTokens."""

    attempt: Id
    seats: Annotated[list[Small], Field(max_length=100_000)]


@strict
@dataclass(frozen=True)
class EdgeTokens:
    """Edge server to main server: tokens for these clients, in the order of the question; the main server hands them on."""

    instance: Id
    fetch: Annotated[list[Id], Field(max_length=100_000)]
    upload: Annotated[list[Id], Field(max_length=100_000)]


@strict
@dataclass(frozen=True)
class Exclude:
    """Main server to edge server: this client is out of the round."""

    attempt: Id
    seat: Small


@strict
@dataclass(frozen=True)
class Await:
    """Main server to edge server: answer when more than `known` heads are complete, or after a while."""

    attempt: Id
    known: Small
    wait_s: Seconds


@strict
@dataclass(frozen=True)
class Have:
    """Edge server to main server: whose heads are complete, and how long their uploads took."""

    instance: Id
    seats: Annotated[list[Small], Field(max_length=100_000)]
    model_up_s: Annotated[list[Seconds], Field(max_length=100_000)]
    refused: Annotated[list[Small], Field(max_length=100_000)]  # whose heads were not let in
    reasons: Annotated[list[Text], Field(max_length=100_000)]
    up_bytes: Count
    down_bytes: Count


@strict
@dataclass(frozen=True)
class Swap:
    """Main server to edge server: the agreed clients and the common units; its sum follows in chunks, the edge server's comes back.

    The edge server answers only when the state of the next round is on its disk."""

    round: Small
    attempt: Id
    kept: Annotated[list[Small], Field(max_length=100_000)]
    start: Small
    stop: Small


@strict
@dataclass(frozen=True)
class TakeUnits:
    """Main server to edge server: units that the edge server lacks for the next round; they follow in chunks."""

    round: Small
    start: Small
    stop: Small


@strict
@dataclass(frozen=True)
class GiveUnits:
    """Main server to edge server: the units `[start, stop)` of a round, please; in chunks."""

    round: Small
    start: Small
    stop: Small


@strict
@dataclass(frozen=True)
class Done:
    """It is done."""


@strict
@dataclass(frozen=True)
class AskStatus:
    """Operator to a server: how are things?"""


@strict
@dataclass(frozen=True)
class Status:
    """A server to its operator."""

    report: Annotated[str, Field(max_length=1 << 20)]  # JSON


KINDS: dict[type[Any], int] = {
    Hello: 1, Welcome: 2, Ready: 3, Round: 4, AskTokens: 5, RoundOver: 6, Leave: 8, Stop: 9, Probe: 10,
    Enter: 20, Entered: 21, Batch: 22, Gradient: 23, End: 24, Ended: 25,
    Fetch: 30, Upload: 31, Uploaded: 32, Chunk: 33,
    Begin: 40, Standing: 41, Open: 42, Allow: 43, Await: 44, Have: 45, Swap: 46, TakeUnits: 47, GiveUnits: 48, Done: 49,
    EdgeTokens: 50, Exclude: 51,
    AskStatus: 60, Status: 61,
}  # fmt: skip
RECORDS = {number: record for record, number in KINDS.items()}
Message = TypeVar("Message")


def pack(message: Any, tensors: dict[str, Tensor] | None = None) -> bytes:
    """The message's bytes."""
    return frames.pack(KINDS[type(message)], message, tensors)


def unpack(content: bytes) -> tuple[Any, dict[str, Tensor]]:
    """A message of any kind, checked, and its tensors."""
    frame: Frame = frames.unpack(content)
    record = RECORDS.get(frame.kind)
    if record is None:
        raise WireError("protocol", f"a message of kind {frame.kind}, which this version does not know")
    return frames.checked_fields(frame.fields, record, record.__name__), frame.tensors


def expect(content: bytes, *kinds: type[Message], tensors: tuple[str, ...] = ()) -> tuple[Message, dict[str, Tensor]]:
    """A message that must be of one of these kinds, with exactly these tensors."""
    message, found = unpack(content)
    if not isinstance(message, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise WireError("order", f"a message {type(message).__name__} where {wanted} is expected")
    if tensors and tuple(sorted(found)) != tuple(sorted(tensors)):
        raise WireError("protocol", f"{type(message).__name__} has tensors {sorted(found)}, not {sorted(tensors)}")
    return cast(Message, message), found
