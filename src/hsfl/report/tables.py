"""How tables are written: means with their intervals as text, and a table (title, header, rows) for a terminal or in Markdown.

Which tables and columns there are is said in `comparison` and `sweep_results`.
"""

import math

from rich.table import Table
from rich.text import Text

from hsfl.report.curves import Estimate

ENDLESS_S = 1e15  # 30 million years: where a rate is next to nothing, seconds are no number that anybody reads


def interval_text(value: Estimate, scale: float = 1.0, digits: int | None = None, sign: bool = False) -> str:
    """A mean with half of its interval, such as `61.20 ± 0.81`; a dash if unknown.

    scale: what the numbers are multiplied by. digits: after the point; by default three digits that count.
    """
    if value.mean is None:
        return "-"
    if abs(value.mean * scale) >= ENDLESS_S:
        return "over 10^15" if value.mean > 0 else "below -10^15"
    mean, half = value.mean * scale, 0.0 if value.high is None else (value.high - value.mean) * scale
    if digits is None:
        is_whole = mean == 0 or abs(mean) >= 100 or (half == 0 and mean == round(mean))
        digits = 0 if is_whole else min(2 - math.floor(math.log10(abs(mean))), 9)  # three that count
    return f"{mean:{'+' if sign else ''}z,.{digits}f}" + (f" ± {half:,.{digits}f}" if half else "")


def ratio_text(value: Estimate, num_seeds: int) -> str:
    """`1.52 [1.31, 1.76]`, and how many of the seeds count where not all do; a dash if unknown."""
    if value.mean is None:
        return "-"
    interval = f" [{value.low:.2f}, {value.high:.2f}]" if value.low is not None else ""
    return f"{value.mean:.2f}{interval}" + (f" ({value.num} of {num_seeds})" if value.num < num_seeds else "")


def rich_table(title: str, header: list[str], rows: list[list[str]]) -> Table:
    """The table for a terminal."""
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(header):
        table.add_column(name, justify="left" if _is_text(rows, place) else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def markdown_table(title: str, header: list[str], rows: list[list[str]]) -> str:
    """The table in Markdown, below its title."""
    align = [":--" if _is_text(rows, place) else "--:" for place in range(len(header))]
    all_cells = [header, align, *([escaped(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return f"**{escaped(title)}**\n\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in all_cells)


def _is_text(rows: list[list[str]], place: int) -> bool:
    """Whether a column holds words, as the first one does; else it holds numbers, some of which may be `never`."""
    cells = [row[place] for row in rows if row[place] != "-"]
    return place == 0 or (bool(cells) and all(cell[:1].isalpha() and cell != "never" for cell in cells))


def escaped(text: str) -> str:
    """The text with the signs of HTML replaced, because Markdown lets HTML through and folders may hold any text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
