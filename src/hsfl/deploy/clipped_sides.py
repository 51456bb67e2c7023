"""Clipping in a deployment: both servers scale the sides of a client by one factor before they sum them.

Each server knows the update of its own side alone. The edge server tells the main server the squared length of each head's update, the
main server adds that of the tail and sends the factor back: one number for each client, each way. Sums are then made and swapped as
without clipping. The numbers are those of a simulation, to the bit (`training.clipping`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hsfl.models.state import UnitState
from hsfl.training.clipping import Clip
from hsfl.training.roles import FinishedSide


@dataclass(frozen=True)
class Factors:
    """What the update of each client is multiplied with, by seat."""

    clip: Clip
    by_seat: Mapping[int, float]

    def scaled(self, seat: int, state: UnitState, side: FinishedSide) -> FinishedSide:
        """A side as it is summed. state: the server's units, as the round began with them. The side itself stays as it is, since a
        swap of sums may be made again."""
        sent = state[side.state.start : side.state.stop]
        return FinishedSide(self.clip.scaled(sent, side.state, self.by_seat[seat]), side.weight)


def side_norms(clip: Clip, state: UnitState, sides: Mapping[int, FinishedSide], kept: Sequence[int]) -> list[int]:
    """The squared length of the update of each kept client's side, in the multiples that the clip counts in."""
    return [clip.squared_norm(state[sides[k].state.start : sides[k].state.stop], sides[k].state) for k in kept]
