"""Which of the page's colours, dashes and shapes a label has."""

from collections.abc import Mapping, Sequence
from typing import Any

from hsfl.framework_table import METHODS, Style
from hsfl.report.runs import built_in


def slots(labels: Sequence[str], foreign: Mapping[str, Style]) -> list[tuple[str, int, dict[str, Any] | None]]:
    """Each label with the place of its colour and dashes: a framework has a place of its own, other labels take places that are left.

    A framework that is not built in has the place after the last built-in framework, and its style goes with it.
    """
    page = [name for name in METHODS if built_in(name) is not None]  # what the page's style sheet has places for
    own = {label: page.index(label) for label in labels if label in page}
    own |= {label: len(page) + place for place, label in enumerate(label for label in labels if label in foreign)}
    free = [slot for slot in reversed(range(len(page))) if slot not in own.values()] or list(range(len(page)))
    others = [label for label in labels if label not in own]
    given = own | {label: free[place % len(free)] for place, label in enumerate(others)}
    return [(label, given[label], _page_style(foreign[label]) if label in foreign else None) for label in labels]


SHAPES = {"x": 0, "X": 0, "s": 1, "v": 2, "^": 3, "D": 4, "d": 4, "P": 5, "<": 6, ">": 7, "*": 8, "p": 3}  # else a dot


def _page_style(style: Style) -> dict[str, Any]:
    """A style as the page draws it: a colour, the number of a shape, and dashes in pixels."""
    colour, marker, dashes = style
    lengths = () if dashes == "solid" else dashes[1]
    return {"colour": colour, "shape": SHAPES.get(marker, 9), "dashes": " ".join(f"{2 * n:g}" for n in lengths)}
