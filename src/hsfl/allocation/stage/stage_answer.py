"""What every solver of a stage takes and gives: a goal, a time limit, and an answer with its proof.

Legend: K clients, I subchannels.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hsfl.allocation.answer import owner_of

if TYPE_CHECKING:
    from hsfl.allocation.stage.stage import Stage  # for types alone, because numba takes seconds to load

Array = np.ndarray
# server_hz [K]; powers to and from the main server, to the edge server [K, I]
Spent = tuple[Array, Array, Array, Array]


class TimeLimit:
    """A clock that starts when it is made, and a limit in seconds."""

    def __init__(self, limit_s: float) -> None:
        self.start = time.perf_counter()
        self.limit_s = limit_s

    def seconds(self) -> float:
        """The seconds since the clock was made."""
        return time.perf_counter() - self.start

    def over(self) -> bool:
        """Whether the limit has passed."""
        return self.seconds() >= self.limit_s

    def left_s(self) -> float:
        """The seconds until the limit; 0 where it has passed."""
        return max(0.0, self.limit_s - self.seconds())

    def part(self, fraction: float) -> "TimeLimit":
        """A new clock, limited to this fraction of the seconds that are left."""
        return TimeLimit(self.left_s() * fraction)


@dataclass(frozen=True)
class StopWhen:
    """When a stage solver may stop.

    gap: the relative distance between T and its lower bound that is small enough. spare_s: seconds by which that
    distance may be longer, because another stage did not need them. tau_s: where given, the solver may also stop as
    soon as it knows whether the stage can end by tau_s.
    """

    gap: float
    spare_s: float = 0.0
    tau_s: float | None = None

    def target(self, T_s: float) -> float:
        """The deadline, in seconds, that a proof has to exclude when the best answer so far takes T_s."""
        return T_s * (1.0 - self.gap) - self.spare_s if self.tau_s is None else self.tau_s

    def reached(self, T_s: float, lower_bound_s: float) -> bool:
        """Whether an answer of T_s seconds with this lower bound is good enough."""
        if self.tau_s is not None and (T_s <= self.tau_s or lower_bound_s >= self.tau_s):
            return True
        return T_s - lower_bound_s <= (self.gap * T_s + self.spare_s) * (1.0 + 1e-9)


@dataclass(frozen=True)
class StageAnswer:
    """Shares of the subchannels, the least T for these shares, and a lower bound on T over all shares."""

    share: Array  # [K, I] part of subchannel i that client k has: 0 or 1 where subchannels are exclusive
    T_s: float
    rho: float  # price of a watt in cycles per second that makes T_s optimal for the shares
    lam: float  # the same price between 0 and 1 (see `stage.client_prices`)
    lower_bound_s: float = 0.0
    spent: Spent | None = None  # None: the cycles and powers that are optimal at (T_s, rho)

    @property
    def owner(self) -> Array:
        """The owner of each subchannel [I]; -1 where nobody has it."""
        return owner_of(self.share)

    @property
    def gap(self) -> float:
        """The relative distance between T and its lower bound."""
        return (self.T_s - self.lower_bound_s) / self.T_s if self.T_s > 0 else 0.0


StageSolver = Callable[["Stage", StopWhen, TimeLimit], StageAnswer]
