"""What all figures share: their style, dashes for curves that coincide, and files that are the same bytes every time.

Matplotlib comes with the extra `report` and is imported where it is used. A figure is a value that nothing else knows
of: no pyplot, no global state.
"""

import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.errors import InputError, install_extra, known_name
from hsfl.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray
FORMATS = ("pdf", "png", "svg")
INK, FAINT, ALARM = "#222222", "#8A8A8A", "#B00020"
STYLE = {
    "font.size": 9.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "hsfl",  # the names inside an SVG are random otherwise
}

CLOSE = 4e-3  # of the span of all curves: nobody sees a smaller distance
DASH = 3.0  # in widths of the line


def matplotlib() -> Any:
    """The package matplotlib; an error that says how to install it where it is missing."""
    try:
        import matplotlib
        import matplotlib.figure
        import matplotlib.lines
        import matplotlib.ticker
        import matplotlib.transforms
    except ImportError:
        raise InputError(f"figures need matplotlib; {install_extra('report')}") from None
    return matplotlib


def save_figure(figure: "Figure", path: str | Path, formats: Iterable[str] = FORMATS) -> list[Path]:
    """Write `path`.pdf, .png and .svg (or the formats given), without dates, so that the same figure is the same file."""
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    written = []
    for kind in formats:
        options: dict[str, Any] = {
            "format": known_name("format", kind, metadata),
            "metadata": metadata[kind],
            "dpi": 160,
        }
        target = Path(f"{path}.{kind}")
        with matplotlib().rc_context(STYLE):
            write_atomic(target, partial(figure.savefig, **options, facecolor="white"))
        written.append(target)
    return written


def figure_file_name(text: str) -> str:
    """The text as a plain file name, for LaTeX too: letters, digits, - and _ alone."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-") or "figure"


def escape_dollars(text: str) -> str:
    """The text with dollar signs escaped: matplotlib would read what stands between them as mathematics."""
    return text.replace("$", r"\$")


def lies_on(curves: Sequence[tuple[Array, Array]]) -> list[int]:
    """For each curve (x, y), the number of the first curve that it coincides with; its own number if there is none. Over rounds
    HSFL, SplitFed V1 and FL are one curve.

    Two curves coincide if they are both known in at least two points and are the same wherever both are known.
    """
    values = [y[np.isfinite(y)] for _, y in curves]
    known = np.concatenate([y for y in values if len(y)] or [np.zeros(1)])
    close = CLOSE * float(np.ptp(known)) or CLOSE * float(np.abs(known).max())
    firsts: list[int] = []
    for place, (x, y) in enumerate(curves):
        earlier = (other for other in range(place) if firsts[other] == other and _coincide(*curves[other], x, y, close))
        firsts.append(next(earlier, place))
    return firsts


def _coincide(x: Array, y: Array, other_x: Array, other_y: Array, close: float) -> bool:
    common_x, at, other_at = np.intersect1d(x, other_x, return_indices=True)
    if len(common_x) < min(2, len(x), len(other_x)) or not len(common_x):
        return False
    both_known = np.isfinite(y[at]) & np.isfinite(other_y[other_at])
    return bool(both_known.any() and (np.abs(y[at] - other_y[other_at])[both_known] <= close).all())


def shared_dashes(dashes: Any, firsts: Sequence[int], place: int, shift: float = 0.0) -> Any:
    """The curve's own dashes; where curves coincide, dashes that leave room for the dashes of the other curves.

    shift: how far to the right the curve is drawn, in widths of the line.
    """
    group = [other for other, first in enumerate(firsts) if first == firsts[place]]
    if len(group) < 2:
        return dashes
    period = DASH * len(group)
    return ((DASH * group.index(place) + shift) % period, (DASH, period - DASH))


def coincidence_notes(names: Sequence[str], *firsts: tuple[str, Sequence[int]]) -> list[str]:
    """What a legend adds to each name, from ("over rounds", what `lies_on` found there): `= HSFL over rounds`, or `= HSFL`
    where it is so in every picture."""
    notes = []
    for place in range(len(names)):
        coincident = [(picture, first[place]) for picture, first in firsts if first[place] != place]
        if coincident and len(coincident) == len(firsts) and len({other for _, other in coincident}) == 1:
            notes.append(f"= {names[coincident[0][1]]}")
        else:
            notes.append(", ".join(f"= {names[other]} {picture}" for picture, other in coincident))
    return notes
