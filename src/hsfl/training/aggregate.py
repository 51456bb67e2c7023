"""Aggregation is partial sums per unit.

Each server sums, weighted by samples, the states of the units it holds over the clients that were kept. The servers
exchange the sums of the units that both hold and divide: with different cuts this is FedAvg of the joined models.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hsfl.models.state import Layout, UnitState

CHUNK = 1 << 18  # numbers that are added at once; whole vectors take four to seven times as long


@dataclass(frozen=True)
class PartialSum:
    """The sum over clients of weight times state, for the units `[start, stop)`, in float64, and the weight of each unit."""

    total: UnitState  # floats float64; integer buffers are summed in `ints` as float64 too
    weight: Tensor  # float64 [stop - start]

    @classmethod
    def zero(cls, layout: Layout, start: int, stop: int, device: torch.device | str = "cpu") -> "PartialSum":
        device = "cpu" if torch.device(device).type == "mps" else device  # mps has no float64
        total = UnitState.empty(layout, start, stop, torch.float64, device)
        total = UnitState(layout, start, stop, total.floats, total.ints.double())
        return cls(total, torch.zeros(stop - start, dtype=torch.float64))

    def __getitem__(self, units: slice) -> "PartialSum":
        first = self.total.start
        return PartialSum(self.total[units], self.weight[units.start - first : units.stop - first])

    def add(self, state: UnitState, weight: float) -> None:
        """Add the units of one client, which are some of ours; its weight is its number of samples."""
        mine = self[state.start : state.stop]
        _add(mine.total.floats, state.floats, weight)
        _add(mine.total.ints, state.ints, weight)
        mine.weight.add_(weight)

    def merge(self, other: "PartialSum") -> None:
        """Add another server's sum over some of our units."""
        mine = self[other.total.start : other.total.stop]
        mine.total.floats.add_(other.total.floats)
        mine.total.ints.add_(other.total.ints)
        mine.weight.add_(other.weight)

    def clone(self) -> "PartialSum":
        return PartialSum(self.total.clone(), self.weight.clone())

    def mean(self, before: UnitState) -> UnitState:
        """The weighted mean in the type of `before`; units that nobody trained stay as they were."""
        after = before.clone()
        for unit in range(self.total.start, self.total.stop):
            weight = float(self.weight[unit - self.total.start])
            if weight > 0:
                mine, out = self.total[unit : unit + 1], after[unit : unit + 1]
                out.floats.copy_(mine.floats / weight)
                out.ints.copy_((mine.ints / weight).round())
        return after

    @property
    def num_bytes(self) -> int:
        """The bytes of the sum on the link between the servers: 8 for each number, and 8 for the weight of each unit."""
        return self.total.num_bytes + self.weight.nbytes


def _add(total: Tensor, part: Tensor, weight: float) -> None:
    """total += weight * part, in pieces that stay in the cache while torch widens them to float64."""
    part = part.to(total.device)
    for mine, theirs in zip(total.split(CHUNK), part.split(CHUNK)):
        mine.add_(theirs, alpha=weight)
