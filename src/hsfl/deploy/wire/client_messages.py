"""Messages between a client and the servers.

Rounds count from 0 on the wire. A seat is a client's number in the run, 0 to K - 1. An attempt is the name of one try at a round:
what belongs to an attempt that is over is refused.
"""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from hsfl.deploy.wire.message_fields import (
    Classes,
    Count,
    Finite,
    Id,
    Long,
    NumberSeconds,
    Rate,
    Seconds,
    Small,
    Text,
    Units,
    UnitSeconds,
    strict,
)
from hsfl.deploy.wire.versions import UNTOLD, DeviceVersions


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
    settings: Long  # JSON: the settings of the run that a client needs
    input_shape: Units
    num_classes: Small
    evaluates: bool  # whether the client's own test samples will judge the model


@strict
@dataclass(frozen=True)
class OwnSpeeds:
    """What a client measured of itself. Memory is None where the system does not tell it."""

    flops_per_s: Rate
    main_up_bps: Rate
    main_down_bps: Rate
    edge_up_bps: Rate
    edge_down_bps: Rate
    memory_bits: Rate | None
    delay_s: Seconds = 0.0  # of a message besides its bits
    unit_forward_s: UnitSeconds = field(default_factory=list)  # of each unit for a batch; empty: not measured
    unit_backward_s: UnitSeconds = field(default_factory=list)
    codecs: Annotated[list[Id], Field(max_length=32)] = field(default_factory=list)  # that were timed
    encode_s: NumberSeconds = field(default_factory=list)  # of a number of a message, by codec
    decode_s: NumberSeconds = field(default_factory=list)


@strict
@dataclass(frozen=True)
class Ready:
    """Client to main server: the client can train. holds: the attempt in which its connection broke, or None."""

    fingerprint: Id
    class_counts: Classes
    measured: OwnSpeeds
    holds: Id | None
    versions: DeviceVersions = UNTOLD


@strict
@dataclass(frozen=True)
class Round:
    """Main server to client: take part in a round.

    A second Round of an attempt that the client holds means: do what is still missing. Where nothing is missing, the
    edge server has lost the head, and the client uploads it again."""

    round: Small
    attempt: Id
    cut: Small
    codec: Id | None = (
        None  # of smashed data and gradients, where clients have different ones; None: that of the settings
    )
    counted: Id | None = None  # the attempt in which an update of this seat was counted last


@strict
@dataclass(frozen=True)
class Evaluate:
    """Main server to client: run your test samples through the averaged head."""

    round: Small  # rounds that the model has seen
    attempt: Id
    cut: Small


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
    """Client to main server: the client goes on purpose, or cannot take part and says this in the place of Ready."""

    why: Text


@strict
@dataclass(frozen=True)
class Stop:
    """Main server to client: there are no more rounds."""

    why: Text


@strict
@dataclass(frozen=True)
class Benched:
    """Main server to client: sit out so many rounds (None: until the operator lets the client take part again)."""

    rounds: Small | None
    why: Text


@strict
@dataclass(frozen=True)
class Knock:
    """Main server to client, on Attend: are you there? Another device wants to join under the same name."""


@strict
@dataclass(frozen=True)
class Alive:
    """Client to main server: the answer to Knock."""


@strict
@dataclass(frozen=True)
class Probe:
    """Client to either server, and back, with a tensor `load`; the client takes the time. answer_bytes: of the load to
    send back."""

    answer_bytes: Annotated[int, Field(ge=0, le=1 << 22)]


@strict
@dataclass(frozen=True)
class Enter:
    """Client to main server, first on the streams Train and Evaluate."""

    attempt: Id


@strict
@dataclass(frozen=True)
class Entered:
    """Main server to client: the step that the main server expects next."""

    step: Count


@strict
@dataclass(frozen=True)
class Batch:
    """Client to main server, with the tensors `smashed` and `labels`."""

    step: Count


@strict
@dataclass(frozen=True)
class Gradient:
    """Main server to client, with the tensors `gradient` (of the smashed data) and `loss`, and how long the step took
    and had waited for its turn."""

    step: Count
    server_s: Seconds
    waited_s: Seconds


@strict
@dataclass(frozen=True)
class End:
    """Client to main server: all batches are done. loss_total: the sum over samples, from a client that holds all units; None
    from others, whose losses the main server computed. Seconds are the client's."""

    steps: Count
    num_samples: Count
    loss_total: Finite | None
    client_s: Seconds  # the client's computing
    exchange_s: Seconds  # from a batch sent to its gradient received, the server's time included
    model_down_s: Seconds  # fetching the head


@strict
@dataclass(frozen=True)
class Ended:
    """Main server to client: the tail is complete, or all test samples are counted."""


@strict
@dataclass(frozen=True)
class Tallied:
    """Client to main server on Evaluate, in the place of Batch, where the client holds all units: its counts."""

    step: Count
    loss: Finite  # summed over the samples
    hits: Classes
    counts: Classes


@strict
@dataclass(frozen=True)
class Evaluated:
    """Client to main server: all batches of the client's test samples were sent. Answered by Ended."""

    steps: Count


@strict
@dataclass(frozen=True)
class Fetch:
    """Client to edge server: asks for the client's head in the attempt. Answered by a model in chunks."""

    attempt: Id


@strict
@dataclass(frozen=True)
class Upload:
    """Client to edge server: the client's trained head follows in chunks. Answered by Uploaded."""

    attempt: Id


@strict
@dataclass(frozen=True)
class Uploaded:
    """Edge server to client: the head is complete."""


@strict
@dataclass(frozen=True)
class Chunk:
    """A piece of a safetensors file, with the tensor `bytes`. at: where the piece begins. total: bytes of the file."""

    at: Count
    total: Count
