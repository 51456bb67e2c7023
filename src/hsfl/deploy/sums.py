"""The end of a round at a server: the sides of the agreed clients are summed, and only then."""

from collections.abc import Mapping, Sequence

from hsfl.models.state import UnitState
from hsfl.training.aggregate import PartialSum
from hsfl.training.roles import Finished, Server


def agreed(state: UnitState, sides: Mapping[int, Finished], kept: Sequence[int]) -> Server:
    """A server that has summed the sides of these clients. state: the units that the round began with.

    The grid of the sums follows from the samples of the agreed clients, as in a simulation that keeps the same clients."""
    num_samples = sum(sides[seat].weight for seat in kept)
    server = Server(state, PartialSum.zero(state, num_samples))
    for seat in kept:
        server.finish(seat, sides[seat].state, sides[seat].weight)
    server.commit(kept)
    return server
