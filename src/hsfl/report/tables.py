"""How tables are written: numbers with their intervals as text, and a `SummaryTable` for a terminal, in Markdown, as CSV and as LaTeX.

A cell is text. Where a number stands behind it, it is a `ValueCell`, and the CSV file holds the number in full. Which tables and columns
there are is said in `comparison`, `sweep_results` and `hsfl.experiments`.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from rich.table import Table
from rich.text import Text

from hsfl.files import write_atomic, write_csv
from hsfl.report.curves import Estimate

ENDLESS_S = 1e15  # 30 million years: where a rate is next to nothing, seconds are no number that anybody reads
ESTIMATE_FIELDS = ("low", "high", "n")  # of a CSV file, beside the mean
LATEX_SIGNS = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",
        **{sign: f"${sign}$" for sign in "<>"},
        "±": r"$\pm$",
        "†": r"$\dagger$",
    }
)


class ValueCell(str):
    """The text of a cell with the value behind it: an `Estimate`, or a plain number."""

    value: Any

    def __new__(cls, text: str, value: Any = None) -> Self:
        cell = super().__new__(cls, text)
        cell.value = value
        return cell


@dataclass(frozen=True)
class SummaryTable:
    """A table of means. The first column is words."""

    name: str  # of its files: letters, digits, - and _
    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""  # of how many seeds or fleets the means are, and what the intervals are


# --- numbers


def interval_text(value: Estimate, scale: float = 1.0, digits: int | None = None, sign: bool = False) -> ValueCell:
    """A mean with half of its interval, such as `61.20 ± 0.81`; a dash if unknown.

    scale: what the numbers are multiplied by. digits: after the point; by default three digits that count.
    """
    return ValueCell(_interval_text(value, scale, digits, sign), scaled_estimate(value, scale))


def _interval_text(value: Estimate, scale: float, digits: int | None, sign: bool) -> str:
    if value.mean is None:
        return "-"
    if abs(value.mean * scale) >= ENDLESS_S:
        return "over 10^15" if value.mean > 0 else "below -10^15"
    mean, half = value.mean * scale, 0.0 if value.high is None else (value.high - value.mean) * scale
    if digits is None:
        is_whole = mean == 0 or abs(mean) >= 100 or (half == 0 and mean == round(mean))
        digits = 0 if is_whole else min(2 - math.floor(math.log10(abs(mean))), 9)  # three that count
    return f"{mean:{'+' if sign else ''}z,.{digits}f}" + (f" ± {half:,.{digits}f}" if half else "")


def scaled_estimate(value: Estimate, scale: float) -> Estimate:
    """The estimate in another unit; unknown stays unknown."""
    mean, low, high = (None if number is None else number * scale for number in (value.mean, value.low, value.high))
    return Estimate(mean, low, high, value.num)


def ratio_text(value: Estimate, num_seeds: int) -> ValueCell:
    """`1.52 [1.31, 1.76]`, and how many of the seeds count where not all do; a dash if unknown."""
    if value.mean is None:
        return ValueCell("-", value)
    interval = f" [{value.low:.2f}, {value.high:.2f}]" if value.low is not None else ""
    few = f" ({value.num} of {num_seeds})" if value.num < num_seeds else ""
    return ValueCell(f"{value.mean:.2f}{interval}{few}", value)


def spread_note(num_seeds: Iterable[int], where: str = "") -> str:
    """How many seeds the means of a table are over, and what their intervals are. num_seeds: of each row. where: the means that have an
    interval, such as `of the total `, where not all have one."""
    counts = sorted(set(num_seeds))
    if not counts or counts[-1] < 2:
        return "n = 1 seed: no interval."
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if where:
        return f"Mean over n = {number} seeds; {where}± half of the 95 % confidence interval (Student t)."
    return f"Mean over n = {number} seeds ± half of the 95 % confidence interval (Student t)."


# --- for people


def rich_table(table: SummaryTable) -> Table:
    """The table for a terminal."""
    shown = Table(title=table.title, title_justify="left")
    for place, name in enumerate(table.header):
        shown.add_column(name, justify="left" if _is_text(table.rows, place) else "right", overflow="fold")
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown


def markdown_table(table: SummaryTable) -> str:
    """The table in Markdown, below its title."""
    return f"**{escaped(table.title)}**\n\n{markdown_rows(table)}"


def markdown_rows(table: SummaryTable) -> str:
    """The table in Markdown without its title."""
    align = [":--" if _is_text(table.rows, place) else "--:" for place in range(len(table.header))]
    all_cells = [table.header, align, *([escaped(cell).replace("|", "\\|") for cell in row] for row in table.rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in all_cells)


def _is_text(rows: list[list[str]], place: int) -> bool:
    """Whether a column holds words, as the first one does; else it holds numbers, some of which may be `never`."""
    cells = [row[place] for row in rows if row[place] != "-"]
    return place == 0 or (bool(cells) and all(cell[:1].isalpha() and cell != "never" for cell in cells))


def escaped(text: str) -> str:
    """The text with the signs of HTML replaced, because Markdown lets HTML through and folders may hold any text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# --- files


def write_summary_tables(tables: Iterable[SummaryTable], out: str | Path, latex: bool = False) -> list[Path]:
    """Write `table-NAME.csv` for each table, and with `latex` the table as LaTeX beside it; returns the files."""
    written = []
    for table in tables:
        csv_path, latex_path = (Path(out) / f"table-{table.name}.{kind}" for kind in ("csv", "tex"))
        written.append(write_csv(csv_path, *csv_cells(table)))
        if latex or latex_path.exists():  # older numbers do not stay beside new ones
            text = latex_table(table, re.sub(r"[^A-Za-z0-9_-]+", "-", Path(out).resolve().name)).encode("utf-8")
            write_atomic(latex_path, partial(Path.write_bytes, data=text))
            written.append(latex_path)
    return written


def csv_cells(table: SummaryTable) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of a CSV file: the values behind the cells. A mean has three more columns: low and high, the ends of its
    interval, and n, how many seeds or fleets it is over. What is unknown is an empty field."""
    columns = list(zip(*table.rows)) or [()] * len(table.header)
    are_means = [any(isinstance(_value_of(cell), Estimate) for cell in column) for column in columns]
    header = [
        name
        for head, is_mean in zip(table.header, are_means)
        for name in (head or "row", *(f"{head} {field}" for field in ESTIMATE_FIELDS if is_mean))
    ]
    rows = [
        [field for cell, is_mean in zip(row, are_means) for field in (_mean_fields(cell) if is_mean else [_value_of(cell)])]
        for row in table.rows
    ]  # fmt: skip
    return header, rows


def _value_of(cell: str) -> Any:
    return cell.value if isinstance(cell, ValueCell) else cell


def _mean_fields(cell: str) -> list[Any]:
    """The four fields of a cell in a column of means."""
    value = _value_of(cell)
    return [value.mean, value.low, value.high, value.num] if isinstance(value, Estimate) else [value, None, None, None]


def latex_table(table: SummaryTable, folder: str = "") -> str:
    r"""The table for LaTeX, to be taken in by \input; the paper needs \usepackage{booktabs}.

    folder: the name of the results' folder, which tells the labels of two results in one paper apart."""
    lines = [_latex_row(cells) for cells in (table.header, *table.rows)]
    parts = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{latex_text(' '.join(filter(None, (f'{table.title}.', table.note))))}}}",
        rf"  \label{{tab:{'-'.join(filter(None, (folder, table.name)))}}}",
        rf"  \begin{{tabular}}{{{_alignment(table)}}}",
        r"    \toprule",
        f"    {lines[0]}",
        r"    \midrule",
        *(f"    {line}" for line in lines[1:]),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(parts) + "\n"


def _alignment(table: SummaryTable) -> str:
    """A letter for each column: numbers stand at the right, words at the left."""
    columns = zip(table.header, *table.rows)
    are_numbers = (any(re.match(r"[-+]?\d", cell) for cell in column[1:]) for column in columns)
    return "l" + "".join("r" if is_number else "l" for is_number in are_numbers)[1:]


def _latex_row(cells: Sequence[str]) -> str:
    """A line of the table. What begins with [ or * would be taken for an option of the line before."""
    first, *others = (latex_text(cell) for cell in cells)
    guard = "{}" if first.startswith(("[", "*")) else ""
    return rf"{guard}{' & '.join((first, *others))} \\"


def latex_text(text: str) -> str:
    """The text with the signs of LaTeX escaped, and minus signs before numbers; a dash alone says that nothing is known."""
    plain = " ".join(text.split())
    if plain == "-":
        return "--"
    return re.sub(r"(?<![\w.)\]-])-(?=\d)", "$-$", plain.translate(LATEX_SIGNS))
