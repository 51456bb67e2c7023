"""Curves that lie on each other: found, said, and drawn so that all of them are seen.

HSFL, SplitFed V1 and FL are one algorithm a round, so over rounds their curves are one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray
CLOSE = 4e-3  # of the span of all curves: nobody sees a smaller distance
DASH = 3.0  # in widths of the line


def lies_on(curves: Sequence[tuple[Array, Array]]) -> list[int]:
    """For each curve (x, y), the number of the first curve that it coincides with; its own number if there is none.

    Two curves coincide if they are both known in at least two points and are the same wherever both are known.
    """
    values = [y[np.isfinite(y)] for _, y in curves]
    known = np.concatenate([y for y in values if len(y)] or [np.zeros(1)])
    close = CLOSE * float(np.ptp(known)) or CLOSE * float(np.abs(known).max())
    first: list[int] = []
    for place, (x, y) in enumerate(curves):
        same = (of for of in range(place) if first[of] == of and _same(*curves[of], x, y, close))
        first.append(next(same, place))
    return first


def _same(x: Array, y: Array, other_x: Array, other_y: Array, close: float) -> bool:
    both, mine, theirs = np.intersect1d(x, other_x, return_indices=True)
    if len(both) < min(2, len(x), len(other_x)) or not len(both):
        return False
    pairs = np.isfinite(y[mine]) & np.isfinite(other_y[theirs])
    return bool(pairs.any() and (np.abs(y[mine] - other_y[theirs])[pairs] <= close).all())


def styled(dashes: Any, first: Sequence[int], place: int, shift: float = 0.0) -> Any:
    """The curve's own dashes; where curves coincide, dashes that leave room for the dashes of the other curves.

    shift: how far to the right the curve is drawn, in widths of the line.
    """
    group = [other for other, of in enumerate(first) if of == first[place]]
    if len(group) < 2:
        return dashes
    period = DASH * len(group)
    return ((DASH * group.index(place) + shift) % period, (DASH, period - DASH))


def notes(names: Sequence[str], *firsts: tuple[str, Sequence[int]]) -> list[str]:
    """What a legend adds to each name, from ("over rounds", what `lies_on` found there): `= HSFL over rounds`, or `= HSFL`
    where it is so in every picture."""
    said = []
    for place in range(len(names)):
        on = [(where, first[place]) for where, first in firsts if first[place] != place]
        if on and len(on) == len(firsts) and len({of for _, of in on}) == 1:
            said.append(f"= {names[on[0][1]]}")
        else:
            said.append(", ".join(f"= {names[of]} {where}" for where, of in on))
    return said
