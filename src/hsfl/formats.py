"""Numbers as people read them: seconds, bytes, per cent, cycles. Commands, progress lines, pages and figures take them from here.

Many clients are told in a few numbers: `quantiles`, and how often each whole number occurs (`counted`). Reading a quantity such as
3.6GHz is the work of `quantities.py`.
"""

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

QUANTILES = (0, 5, 25, 50, 75, 95, 100)  # per cent, at which many clients are shown
ENDLESS = 1e15  # no clock counts so many seconds
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def rounded(value: float, digits: int) -> float:
    """The nearest number with so many significant digits."""
    return float(f"{value:.{digits}g}")


def all_rounded(values: Iterable[float], digits: int) -> list[float]:
    """Each value rounded to so many significant digits."""
    return [rounded(value, digits) for value in values]


def brief(value: float) -> str:
    """Three digits, or whole up to a million, for the cells of a table; - for a number that is not there."""
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if 999.5 <= value < 1e6 else f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-")


def grouped(value: float) -> str:
    """Three digits below a hundred, whole with thousands apart above it: 0.0123, 4.56, 12,345; a number above ENDLESS is told in words."""
    if value >= ENDLESS:
        return "over 10^15"
    return f"{value:,.0f}" if 100 <= value < 1e9 else f"{value:.3g}"


def significant(value: float, digits: int = 4) -> str:
    """So many significant digits, for cells whose column names the unit: 12.35, 1.235e+06."""
    return f"{value:.{digits}g}"


def seconds(value_s: float, digits: int | None = None) -> str:
    """12,345 s; with `digits`, so many significant ones: 12.35 s."""
    return f"{grouped(value_s) if digits is None else significant(value_s, digits)} s"


def took(value_s: float) -> str:
    """How long something took: 1.23 s, or 4.56 ms where it was less than a second."""
    return f"{value_s:.3g} s" if value_s >= 1 else f"{1e3 * value_s:.3g} ms"


def duration(value_s: float) -> str:
    """How long something will take, roughly: 90 s, 12 min or 3.4 h."""
    if value_s < 120:
        return f"{value_s:.0f} s"
    return f"{value_s / 60:.0f} min" if value_s < 7200 else f"{value_s / 3600:,.1f} h"


def percent(fraction: float, digits: int = 2, sign: bool = False) -> str:
    """0.1234 -> 12.34%, with so many digits after the point; with `sign` +12.34%."""
    return f"{fraction:{'+' if sign else ''}.{digits}%}"


def size(num_bytes: float) -> str:
    """1536 -> 1.536 kB. Tables count kB, MB and GB in tens, too."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 999.95:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.4g} GB"


def giga(value: float) -> str:
    """Cycles per second or FLOPs in units of 10^9, for a column whose head says so."""
    return brief(value / 1e9)


def si(value: float) -> str:
    """1e12 -> `1 T`, to be followed by the unit."""
    power, letter = next(((p, u) for p, u in PREFIXES if value >= p * (1 - 1e-9)), (1.0, ""))
    return f"{value / power:.4g} {letter}"


def cut_words(cut: int, codec: str | None) -> str:
    """A cut, with its codec where clients have different ones: `3`, `3 int8`."""
    return str(cut) if codec is None else f"{cut} {codec}"


def without_numbers(message: str) -> str:
    """What a message says, whatever its numbers and plurals: what tells warnings of many runs apart."""
    return re.sub(r"\d[\d.,]*( step| round| client)?s?", "#", message)


def count(number: int, noun: str) -> str:
    """1,234 rounds, 1 round."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


DIGITS = 7  # of recorded numbers: enough for a chart, and a third of the file


def quantiles(values: "np.ndarray") -> list[float]:
    """The quantiles of values [n], from the least to the largest, [Q]; zeros where there are no values."""
    import numpy as np  # here, because hsfl --help needs none

    return all_rounded(np.percentile(values, QUANTILES) if len(values) else np.zeros(len(QUANTILES)), DIGITS)


def counted(values: "np.ndarray") -> dict[str, int]:
    """How often each whole number occurs, by the number."""
    import numpy as np  # here, because hsfl --help needs none

    numbers, counts = np.unique(np.asarray(values, int), return_counts=True)
    return {str(value): int(count) for value, count in zip(numbers, counts)}
