"""The numbers of all messages, and how a message is packed and unpacked. docs/protocol.md says who sends which, and when."""

from typing import Any, TypeVar

from torch import Tensor

from hsfl.deploy.wire import frames
from hsfl.deploy.wire.client_messages import (
    Alive,
    Batch,
    Benched,
    Chunk,
    End,
    Ended,
    Enter,
    Entered,
    Evaluate,
    Evaluated,
    Fetch,
    Gradient,
    Hello,
    Knock,
    Leave,
    Probe,
    Ready,
    Round,
    RoundOver,
    Stop,
    Tallied,
    Upload,
    Uploaded,
    Welcome,
)
from hsfl.deploy.wire.frames import Frame, WireError
from hsfl.deploy.wire.server_messages import (
    AskNorms,
    AskStatus,
    Await,
    Begin,
    Clipped,
    Done,
    GiveUnits,
    Have,
    Norms,
    Open,
    Standing,
    Status,
    Swap,
    TakeUnits,
)

KINDS: dict[type[Any], int] = {
    Hello: 1, Welcome: 2, Ready: 3, Round: 4, RoundOver: 6, Evaluate: 7, Leave: 8, Stop: 9, Probe: 10,
    Benched: 11, Knock: 12, Alive: 13,
    Enter: 20, Entered: 21, Batch: 22, Gradient: 23, End: 24, Ended: 25, Tallied: 26, Evaluated: 27,
    Fetch: 30, Upload: 31, Uploaded: 32, Chunk: 33,
    Begin: 40, Standing: 41, Open: 42, Await: 44, Have: 45, Swap: 46, TakeUnits: 47, GiveUnits: 48, Done: 49,
    AskNorms: 55, Norms: 56, Clipped: 57,
    AskStatus: 60, Status: 61,
}  # fmt: skip
RECORDS = {number: record for record, number in KINDS.items()}
Message = TypeVar("Message")


def pack_message(message: Any, tensors: dict[str, Tensor] | None = None) -> bytes:
    """The message's bytes."""
    return frames.pack_frame(KINDS[type(message)], message, tensors)


def unpack_message(content: bytes) -> tuple[Any, dict[str, Tensor]]:
    """A message of any kind, checked, and its tensors."""
    frame: Frame = frames.unpack_frame(content)
    record = RECORDS.get(frame.kind)
    if record is None:
        raise WireError("protocol", f"a message of kind {frame.kind}, which this version does not know")
    return frames.checked_fields(frame.fields, record, record.__name__), frame.tensors


def expect_message(
    content: bytes, kind: type[Message], tensors: tuple[str, ...] = ()
) -> tuple[Message, dict[str, Tensor]]:
    """A message that must be of this kind, with exactly these tensors."""
    message, received = expect_any_message(content, kind)
    if tuple(sorted(received)) != tuple(sorted(tensors)):
        raise WireError("protocol", f"{kind.__name__} has tensors {sorted(received)}, not {sorted(tensors)}")
    return message, received


def expect_any_message(content: bytes, *kinds: type[Any]) -> tuple[Any, dict[str, Tensor]]:
    """A message that must be of one of these kinds."""
    message, received = unpack_message(content)
    if not isinstance(message, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise WireError("order", f"a message {type(message).__name__} where {wanted} is expected")
    return message, received
