"""What all figures share: the look, and files that are the same bytes every time.

Matplotlib comes with the extra `report` and is imported where it is used. A figure is a value that nothing else knows
of: no pyplot, no global state.
"""

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsfl.errors import InputError, known
from hsfl.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def matplotlib() -> Any:
    """The package matplotlib; an error that says how to install it where it is missing."""
    try:
        import matplotlib
        import matplotlib.figure
        import matplotlib.lines
        import matplotlib.ticker
        import matplotlib.transforms
    except ImportError:
        raise InputError("figures need matplotlib; pip install 'hsfl[report]'") from None
    return matplotlib


def save(figure: "Figure", path: str | Path, formats: Iterable[str] = FORMATS) -> list[Path]:
    """Write `path`.pdf, .png and .svg (or the formats given), without dates, so that the same figure is the same file."""
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    written = []
    for kind in formats:
        words: dict[str, Any] = {"format": known("format", kind, metadata), "metadata": metadata[kind], "dpi": 160}
        target = Path(f"{path}.{kind}")
        with matplotlib().rc_context(STYLE):
            write_atomic(target, partial(figure.savefig, **words, facecolor="white"))
        written.append(target)
    return written


def file_name(text: str) -> str:
    """Words as a plain file name, for LaTeX too: letters, digits, - and _ alone."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-") or "figure"


def plain(text: str) -> str:
    """Words as words: matplotlib would read what stands between dollar signs as mathematics."""
    return text.replace("$", r"\$")
