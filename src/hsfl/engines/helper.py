"""One worker, as the run sees it: what it was ordered to do, what it holds, and how fast it is."""

import time
from collections import deque
from dataclasses import dataclass, field

LASTING = 0.7  # how much of what is known of a worker's pace lasts when it has trained more


@dataclass(frozen=True)
class Ordered:
    """An order that a worker has not answered yet."""

    items: tuple[int, ...] = ()  # clients or batches
    samples: int = 0  # that these clients train on
    alone: bool = False  # whether nothing may be ordered behind it


@dataclass(kw_only=True)
class Helper:
    """One worker. It carries out its orders one by one."""

    where: str  # its process, and with Ray its node, for the log
    orders: deque[Ordered] = field(default_factory=deque)
    held: list[int] = field(default_factory=list)  # clients whose sum was not handed over yet
    since_s: float = 0.0  # when it began with its first order, on the monotonic clock
    samples: float = 0.0  # that it has trained, the older the less they count
    seconds: float = 0.0  # that these took
    deaths: int = 0  # of workers in its place since a round was completed, its own included

    @property
    def undone(self) -> list[int]:
        """The clients or batches that must be done again if the worker dies."""
        return [*self.held, *(item for order in self.orders for item in order.items)]

    @property
    def open(self) -> bool:
        """Whether more may be ordered behind its orders."""
        return not (self.orders and self.orders[-1].alone)

    @property
    def pace(self) -> float | None:
        """Samples per second; None before the worker has trained any."""
        return self.samples / self.seconds if self.seconds else None

    def given(self, order: Ordered) -> None:
        """The worker was given an order."""
        if not self.orders:
            self.since_s = time.monotonic()
        self.orders.append(order)

    def answered(self) -> Ordered:
        """The worker has carried out its first order, which is returned."""
        done, now_s = self.orders.popleft(), time.monotonic()
        if done.samples:
            self.samples = LASTING * self.samples + done.samples
            self.seconds = LASTING * self.seconds + now_s - self.since_s
        self.since_s = now_s
        return done
