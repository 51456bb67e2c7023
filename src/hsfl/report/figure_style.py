"""What all figures share: their style, dashes for curves that coincide, and files that are the same bytes every time.

Matplotlib comes with the extra `report` and is imported where it is used. A figure is a value that nothing else knows
of: no pyplot, no global state.
"""

import re
from collections.abc import Callable, Iterable, Sequence
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

LEGEND_SHARE = 0.25  # of a figure's width, which its legend takes at most
LEGEND_FONT = 8.5  # points
BESIDE_TEXT = 1.7  # letters: what a legend leaves free beside its samples and texts
CLOSE = 4e-3  # of the span of all curves: nobody sees a smaller distance
DASH = 3.0  # in widths of the line


def matplotlib() -> Any:
    """The package matplotlib; an error that says how to install it where it is missing."""
    try:
        import matplotlib
        import matplotlib.figure
        import matplotlib.font_manager
        import matplotlib.lines
        import matplotlib.textpath
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


def add_side_legend(figure: "Figure", handles: Sequence[Any], texts: Sequence[str], sample: float = 3.6) -> None:
    """Draw a legend right of all axes, at most a quarter of the figure wide. A figure that is too low for the legend grows.

    sample: the length of a line's sample, in letters.
    """
    texts = legend_texts(figure, texts, sample)
    look = {"frameon": False, "fontsize": LEGEND_FONT, "handlelength": sample}
    figure.legend(handles, texts, loc="outside right center", **look)
    letters = sum(1.25 * (text.count("\n") + 1) + 0.5 for text in texts) + 2
    figure.set_figheight(max(figure.get_figheight(), letters * LEGEND_FONT / 72))


def legend_texts(figure: "Figure", texts: Sequence[str], sample: float = 3.6) -> list[str]:
    """The texts in lines that are short enough for a legend of a quarter of the figure's width."""
    mpl = matplotlib()
    font, paths = mpl.font_manager.FontProperties(size=LEGEND_FONT), mpl.textpath.TextToPath()
    room = 72 * LEGEND_SHARE * figure.get_figwidth() - (sample + BESIDE_TEXT) * LEGEND_FONT

    def fits(line: str) -> bool:
        return paths.get_text_width_height_descent(line, font, ismath=False)[0] <= room

    return ["\n".join(line for part in text.split("\n") for line in _lines(part, fits)) for text in texts]


def _lines(text: str, fits: Callable[[str], bool]) -> list[str]:
    """The text in lines that fit, broken between words; a word that is too long is broken after its signs, else anywhere."""
    lines = [""]
    for word in re.findall(r"\S+\s*", text):
        parts = [word] if fits(word.rstrip()) else re.split(r"(?<=[.,=_/-])(?=\D)", word)
        for piece in (piece for part in parts for piece in ([part] if fits(part.rstrip()) else part)):
            if lines[-1] and not fits(lines[-1] + piece.rstrip()):
                lines.append("")
            lines[-1] += piece
    return [line.rstrip() for line in lines]


def lies_on(curves: Sequence[tuple[Array, Array]]) -> list[int]:
    """For each curve (x, y), the number of the first curve that it coincides with; its own number if there is none. Over rounds
    HSFL, SplitFed V1 and FL are one curve.

    Two curves coincide if they have at least two points in common, or are a point each, and are the same wherever both are known.
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
    if len(common_x) < min(2, max(len(x), len(other_x))) or not len(common_x):
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
