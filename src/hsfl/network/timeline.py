"""The timeline of one round as a record: when every phase of every client begins and ends, and who was the straggler.

Legend: K clients, P phases.

A round of N batches is drawn as one batch stretched: the block of a phase is as long as that phase in all of the
client's batches together, and starts when the phases (and the waiting) before it, over all batches, are over. So
blocks keep their order, the last one ends with the round, and a chart needs nine blocks per client.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hsfl.errors import InputError
from hsfl.network.steps import STEP_PHASES

Array = np.ndarray

PHASES = (*STEP_PHASES, "model_up", "model_down")
MODEL_UP, MODEL_DOWN = PHASES.index("model_up"), PHASES.index("model_down")


SERVER = [PHASES.index("server_forward"), PHASES.index("server_backward")]
LEVEL = 1e-6  # of a time: what differs by less is the same
LONGEST_S = 1e100  # of a round; what is computed from it stays far from the largest number


@dataclass(frozen=True)
class Timeline:
    """One round, in seconds from its start. Nothing in it is infinite or NaN.

    `finish_s` is when a client's own part was over, before the closing download (tau if it was dropped, 0 if it did
    not start). `waiting_s` is the part of the round in which neither the client nor the radio nor the server works
    for it (0 if it did not start). `straggler` is the client that ends last; of several, the client with the most work of its
    own, without downloads and the server's work. Where clients take turns alone, it is the client with the longest turn; -1 if
    no client works.
    """

    framework: str
    start_s: Array  # [P, K]
    end_s: Array  # [P, K]
    started: Array  # [K] bool
    kept: Array  # [K] bool: its update counts
    finish_s: Array  # [K]
    waiting_s: Array  # [K]
    straggler: int
    round_s: float

    def __post_init__(self) -> None:
        for name in ("start_s", "end_s", "finish_s", "waiting_s", "round_s"):
            if not (np.abs(getattr(self, name)) <= LONGEST_S).all():
                raise InputError(
                    f"a round of {self.framework} takes endless time; give the clients faster links or speeds"
                )

    @property
    def dropped(self) -> Array:
        """Started, but past tau, [K] bool."""
        return self.started & ~self.kept

    @property
    def phase_s(self) -> dict[str, Array]:
        """Seconds of each phase over the whole round, [K] each."""
        return dict(zip(PHASES, self.end_s - self.start_s))

    def spans(self) -> Iterator[tuple[int, str, float, float]]:
        """(client, phase, start_s, end_s) of every phase that takes time, client by client: the bars of a chart."""
        for k in range(self.start_s.shape[1]):
            for p, phase in enumerate(PHASES):
                if self.end_s[p, k] > self.start_s[p, k]:
                    yield k, phase, float(self.start_s[p, k]), float(self.end_s[p, k])


@dataclass(frozen=True)
class Why:
    """What holds a client up: its longest phase in a round. Data is in bytes and its rate in bits per second; computing is in FLOPs and
    FLOPs per second."""

    client: int
    phase: Literal["client", "smashed", "server", "gradient", "model_up"]
    seconds: float  # of the phase over the round
    own_s: float  # of all the client's phases but the model's download
    amount: float
    per_second: float


def make_timeline(
    name: str,
    start: Array,
    end: Array,
    on: Array,
    kept: Array,
    *,
    finish_s: Array,
    busy_s: Array,
    own_s: Array,
    round_s: float,
    last_s: Array | None = None,
) -> Timeline:
    """The record of a round of framework `name`, from the seconds `start` and `end` of its blocks [P, K].

    on, kept: [K] bool, who takes part, and whose update counts. finish_s: [K], when a client's own part is over.
    busy_s: [K], how long the client, the radio or the server works for the client; it waits for the rest of the round.
    own_s: [K], the client's work apart from downloads; a client without any is no straggler.
    last_s: [K], the number that is largest for the straggler; by default `finish_s`.
    """
    waiting_s = np.where(on, np.maximum(round_s - busy_s, 0.0), 0.0)
    server_s = (end - start)[SERVER].sum(axis=0)
    straggler = _straggler(finish_s if last_s is None else last_s, own_s, server_s)
    return Timeline(name, start, end, on.copy(), kept.copy(), finish_s, waiting_s, straggler, float(round_s))


def _straggler(last_s: Array, own_s: Array, server_s: Array) -> int:
    """Of the clients that end last, the client with the most work apart from the server's work, since a policy gives the server's
    cycles to the client that it holds up; -1 if no client works."""
    if own_s.max() <= 0:
        return -1
    last = last_s >= last_s.max() * (1 - LEVEL)
    return int(np.where(last, np.maximum(own_s - server_s, 0.0), -1.0).argmax())
