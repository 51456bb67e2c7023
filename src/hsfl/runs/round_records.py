"""A line of rounds.jsonl as a checked record: what a round writes down, and what its numbers must satisfy.

Where a fleet is large, lists over clients are empty, and a `crowd` holds quantiles instead (`runs.crowds`).

Legend: K clients, C classes, I subchannels, Q quantiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic reads that of `typing` from Python 3.12 on

from hsfl.formats import QUANTILES
from hsfl.runs.numbers import Count, Fraction, Index, Number, Positive, check_length
from hsfl.tasks import Metric


class Times(TypedDict):
    """When a phase of each client begins and ends, in seconds from the start of the round."""

    start_s: list[Number]  # [K]
    end_s: list[Number]  # [K]


class Says(TypedDict, total=False):
    """What a policy says of its answer. A policy of a plugin may say more."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    policy: str
    status: str
    gap: Number | None
    lower_bound_s: Number | None
    seconds: Number | None
    server_hz: list[Number]  # [K]
    share: list[Number]  # [K] of the band
    up_power_w: list[Number]  # [K]
    down_power_w: list[Number]  # [K]
    owner: list[int]  # [I] -1: nobody


class Averaged(TypedDict):
    """How good a model is with BatchNorm's averaged statistics, where it was tested with estimated ones."""

    test_loss: Number
    test_accuracy: Fraction | None
    balanced_accuracy: Fraction | None


class RoundCrowd(TypedDict):
    """A round of a large fleet. Quantiles are over the clients that took part."""

    num_clients: Count
    num_started: Count
    num_kept: Count
    cuts: dict[str, Count]  # how many of those that took part have each cut
    finish_s: list[Number]  # [Q] when a client's own part is over
    waiting_s: list[Number]  # [Q]
    phases_s: dict[str, list[Number]]  # [Q] seconds of each phase over the round
    straggler_s: dict[str, Number]  # seconds of each phase of the straggler


PER_CLIENT = ("server_hz", "share", "up_power_w", "down_power_w")  # fields of Says


def _has_words(why: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(why.get("words"), str):
        raise ValueError("its words are missing")
    return why


Held = Annotated[dict[str, Any], AfterValidator(_has_words)]


@dataclass(frozen=True)
class RoundRecord:
    """A line of rounds.jsonl."""

    round: Annotated[int, Field(ge=1, le=2**31)]  # 1, 2, ...
    framework: str
    sim_time_s: Positive  # simulated seconds since the run began, at the end of this round
    round_s: Positive  # simulated
    wall_s: Positive
    num_samples: Count  # trained on
    train_loss: Number | None  # None: nobody trained
    test_loss: Number | None  # None: not evaluated in this round
    test_accuracy: Fraction | None
    balanced_accuracy: Fraction | None
    recall: list[Fraction | None] | None  # [C]
    lr: Number
    cuts: list[Index]  # [K]
    started: list[Index]  # clients that took part in the round
    kept: list[Index]  # clients whose update counts
    dropped: list[Index]  # clients that started and passed tau
    straggler: Index | None  # the client that ends last
    waiting_s: list[Number]  # [K] simulated seconds in which nothing worked for the client
    phases: dict[str, Times]  # of each phase that takes time
    allocation: Says  # what the policy says of its answer, and under `resources` the numbers to recompute it
    bytes: dict[str, Count]  # by link
    why: Held | None = (
        None  # what holds the straggler up (planning.straggler.Why); None if nobody trained, and on real machines
    )
    metrics: dict[str, Number] = field(
        default_factory=dict
    )  # of tasks other than classification, and of plugins, by name
    crowd: RoundCrowd | None = None  # of a large fleet, whose lists over clients are empty, but for those dropped
    measured: dict[str, list[Positive | None]] | None = (
        None  # on real machines: seconds of each phase that clients took, [K], None where a client did not finish; `phases` is the model's
    )

    averaged: Averaged | None = None  # None where BatchNorm's statistics were not estimated
    estimation_s: Positive | None = None  # simulated, of the estimation at the end of the round; a part of round_s

    @property
    def num_clients(self) -> int:
        return len(self.cuts) if self.crowd is None else self.crowd["num_clients"]

    @property
    def num_started(self) -> int:
        return len(self.started) if self.crowd is None else self.crowd["num_started"]

    @property
    def num_kept(self) -> int:
        return len(self.kept) if self.crowd is None else self.crowd["num_kept"]

    def value(self, quantity: str) -> float | None:
        """A loss, an accuracy or a metric by its name; None where the round was not evaluated or has no such metric."""
        found: float | None = getattr(self, quantity) if quantity in RECORDED else self.metrics.get(quantity)
        return found


WHERE_ESTIMATED = (
    "averaged",
    "estimation_s",
)  # fields that a line has only where BatchNorm's statistics were estimated
RECORDED = ("test_accuracy", "balanced_accuracy", "train_loss", "test_loss")  # quantities that are fields of a round


def best_round(records: Sequence[RoundRecord], metric: Metric) -> RoundRecord | None:
    """The first of the rounds with the best value of a metric; None where no round has a value."""
    best: tuple[float, RoundRecord] | None = None
    for record in records:
        value = record.value(metric.name)
        if value is not None and (best is None or metric.is_better(value, best[0])):
            best = value, record
    return None if best is None else best[1]


def _consistent_round(record: RoundRecord) -> RoundRecord:
    """Every list over clients has K numbers, and every client is one of the K."""
    num_clients = record.num_clients
    if record.crowd is None and len(record.cuts) != len(record.waiting_s):
        raise ValueError(
            f"cuts has {len(record.cuts)} entries and waiting_s {len(record.waiting_s)}; both have one for each client"
        )
    for name in ("started", "kept", "dropped"):
        _check_clients(name, getattr(record, name), num_clients)
    if record.straggler is not None:
        _check_clients("straggler", [record.straggler], num_clients)
    if record.crowd is not None:
        _check_crowd(record)
        return record
    for phase, times in record.phases.items():
        check_length(f"phases.{phase}.start_s", times["start_s"], num_clients)
        check_length(f"phases.{phase}.end_s", times["end_s"], num_clients)
    for phase, took_s in (record.measured or {}).items():
        check_length(f"measured.{phase}", took_s, num_clients)
    says: dict[str, Any] = dict(record.allocation)
    for name in PER_CLIENT:
        if name in says:
            check_length(f"allocation.{name}", says[name], num_clients)
    return record


def _check_crowd(record: RoundRecord) -> None:
    """Refuse lists over clients beside a crowd, and a crowd with a wrong number of quantiles."""
    assert record.crowd is not None
    for name in ("cuts", "started", "kept", "waiting_s", "phases"):
        check_length(name, getattr(record, name), 0)
    each = {f"phases_s.{phase}": values for phase, values in record.crowd["phases_s"].items()}
    for name, values in {"finish_s": record.crowd["finish_s"], "waiting_s": record.crowd["waiting_s"], **each}.items():
        if len(values) != len(QUANTILES):
            raise ValueError(f"crowd.{name} has {len(values)} entries, not {len(QUANTILES)} quantiles")


def _check_clients(name: str, clients: Sequence[int], num_clients: int) -> None:
    for client in clients:
        if client >= num_clients:
            raise ValueError(f"{name} names client {client} but the clients are 0 to {num_clients - 1}")
    if len(set(clients)) < len(clients):
        raise ValueError(f"{name} names a client twice")


CheckedRound = Annotated[RoundRecord, AfterValidator(_consistent_round)]
