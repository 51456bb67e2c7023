"""Messages between the main server and the edge server, and between a server and its operator. The main server asks."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from hsfl.deploy.wire.message_fields import Count, Id, Long, Seats, Seconds, Small, Text, Units, strict
from hsfl.deploy.wire.versions import UNTOLD, DeviceVersions

SquaredNorm = Annotated[int, Field(ge=0, lt=2**1024)]  # of doubles, and so much longer than 64 bits at the worst


@strict
@dataclass(frozen=True)
class Begin:
    """Main server to edge server, before anything else: what is trained, in which run. Answered by Standing."""

    run: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]  # the run's own name: a folder at the edge server
    settings: Long
    input_shape: Units
    num_classes: Small


@strict
@dataclass(frozen=True)
class Standing:
    """Edge server to main server: which rounds it can begin, and the units that it holds for each, `[0, stop)`."""

    instance: Id  # of the process: a new process has a new one, and has lost the heads of an open round
    fingerprint: Id
    rounds: Annotated[list[Small], Field(max_length=8)]
    stops: Annotated[list[Small], Field(max_length=8)]
    versions: DeviceVersions = UNTOLD


@strict
@dataclass(frozen=True)
class Seat:
    """A client of a round, as the edge server must know it: how many samples it trains on, and what it counts in the average."""

    seat: Small
    name: Id
    cut: Small
    num_samples: Count
    weight: Count


@strict
@dataclass(frozen=True)
class Open:
    """Main server to edge server: a round begins, or goes on after a restart, or the state before it is evaluated.
    Answered by Done."""

    round: Small
    attempt: Id
    seats: Annotated[list[Seat], Field(max_length=100_000)]
    evaluates: bool  # heads are fetched to be evaluated, and none is uploaded


@strict
@dataclass(frozen=True)
class Await:
    """Main server to edge server. Answered by Have when more than `known` heads are complete or refused, or after
    `wait_s` seconds."""

    attempt: Id
    known: Small
    wait_s: Seconds


@strict
@dataclass(frozen=True)
class Have:
    """Edge server to main server: whose heads are complete, how long these uploads took, whose were refused."""

    instance: Id
    seats: Seats
    model_up_s: Annotated[list[Seconds], Field(max_length=100_000)]
    refused: Seats  # seats whose heads were refused, and why: a word of `metrics.REASONS`, and a sentence
    reasons: Annotated[list[Id], Field(max_length=100_000)]
    words: Annotated[list[Text], Field(max_length=100_000)]
    up_bytes: Count
    down_bytes: Count


@strict
@dataclass(frozen=True)
class AskNorms:
    """Main server to edge server, where `train.clip_norm` is set: how long are the updates of these clients' heads? Answered by Norms."""

    attempt: Id
    kept: Seats


@strict
@dataclass(frozen=True)
class Norms:
    """Edge server to main server: the squared length of each head's update, in multiples of clip_norm**2 * 2**-48."""

    squared: Annotated[list[SquaredNorm], Field(max_length=100_000)]


@strict
@dataclass(frozen=True)
class Clipped:
    """Main server to edge server, before Swap: what the updates of these clients are multiplied with. Answered by Done."""

    attempt: Id
    kept: Seats
    factors: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(max_length=100_000)]


@strict
@dataclass(frozen=True)
class Swap:
    """Main server to edge server: the agreed clients and the common units `[start, stop)`. The main server's sum over
    these units follows in chunks, and the edge server's sum comes back.

    The edge server says Done only when the state of the next round is on its disk."""

    round: Small
    attempt: Id
    kept: Seats
    start: Small
    stop: Small


@strict
@dataclass(frozen=True)
class TakeUnits:
    """Main server to edge server: units `[start, stop)` of a round, which the edge server lacks, follow in chunks."""

    round: Small
    start: Small
    stop: Small


@strict
@dataclass(frozen=True)
class GiveUnits:
    """Main server to edge server: asks for the units `[start, stop)` of a round. Answered by a model in chunks."""

    round: Small
    start: Small
    stop: Small


@strict
@dataclass(frozen=True)
class Done:
    """Edge server to main server: what Open, TakeUnits or Swap asked for is done."""


@strict
@dataclass(frozen=True)
class AskStatus:
    """Operator to a server: how are things?"""


@strict
@dataclass(frozen=True)
class Status:
    """A server to its operator."""

    report: Annotated[str, Field(max_length=1 << 20)]  # JSON
