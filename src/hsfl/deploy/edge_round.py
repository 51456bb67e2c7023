"""A round at the edge server: who takes part, and whose heads are complete."""

import asyncio
import time
from dataclasses import dataclass, field

from hsfl.deploy.frames import WireError
from hsfl.deploy.server_messages import Seat
from hsfl.deploy.states import read_state
from hsfl.frameworks.framework import join
from hsfl.models.state import UnitState
from hsfl.training.aggregate import Diverged, check_growth
from hsfl.training.roles import Finished


@dataclass
class EdgeRound:
    """An open round: who takes part, and whose heads are complete."""

    round: int
    attempt: str
    state: UnitState  # units [0, max cut)
    seats: dict[str, Seat]  # by name
    most: tuple[float, ...]  # the largest absolute value that each unit may hold after the round
    finished: dict[int, Finished] = field(default_factory=dict)
    model_up_s: dict[int, float] = field(default_factory=dict)
    refused: dict[int, tuple[str, str]] = field(default_factory=dict)  # by seat: the reason, and words
    up_bytes: int = 0
    down_bytes: int = 0
    began_s: float = field(default_factory=time.perf_counter)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)


def joined(before: UnitState, more: UnitState) -> UnitState:
    """The units of both states; `more` begins where `before` ends."""
    return join(before, more)[0 : more.stop].clone()


def checked_head(content: bytes, like: UnitState, most: tuple[float, ...]) -> UnitState:
    """The head in a safetensors file. A number that is not finite, or larger than its unit's `most`, is a WireError."""
    head = read_state(content, like)
    try:
        check_growth(head, most)
    except Diverged as error:
        raise WireError("diverged", str(error)) from None
    return head
