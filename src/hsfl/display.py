"""How a result shows itself on one screen: as text (its `repr`), and as HTML in a notebook.

A result says what it shows as a `Screen`, some sentences and a table. Text of files (labels, names) can hold anything: in HTML it is
escaped, and characters that are not printable are replaced, because an escape sequence could rewrite a terminal.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from textwrap import wrap
from typing import Any

from hsfl.errors import InputError

WIDTH = 100  # letters of a line
MOST_LINES = 12  # of sentences
MOST_ROWS = 12  # of a table; of a longer one the first are shown
MOST_LETTERS = 40  # of a cell


@dataclass(frozen=True)
class Screen:
    """What is shown: sentences, and below them a table, which may be empty."""

    sentences: Sequence[str]
    header: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()

    def text(self) -> str:
        """Lines of at most `WIDTH` letters; columns that find no room are counted, and so are rows."""
        lines = [part for sentence in self.sentences for part in wrap(_printable(sentence), WIDTH)]
        lines = lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES - 1], "..."]
        columns = [list(map(cell_text, column)) for column in zip(self.header, *self.shown_rows)]
        widths = [max(map(len, column)) for column in columns]
        fitting = sum(sum(widths[:place]) + 2 * (place - 1) <= WIDTH for place in range(1, len(widths) + 1))
        for cells in zip(*columns[:fitting]):
            lines.append("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths)).rstrip())
        return "\n".join(lines + self._rest(len(columns) - fitting))

    def html(self) -> str:
        """The same as HTML, with all columns."""
        parts = [f"<p>{escape(_printable(sentence))}</p>" for sentence in self.sentences]
        if self.header:
            head = "".join(f"<th>{escape(cell_text(name))}</th>" for name in self.header)
            rows = ("".join(f"<td>{escape(cell_text(cell))}</td>" for cell in row) for row in self.shown_rows)
            body = "".join(f"<tr>{cells}</tr>" for cells in rows)
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        return f"<div>{''.join([*parts, *(f'<p>{line}</p>' for line in self._rest(0))])}</div>"

    @property
    def shown_rows(self) -> Sequence[Sequence[Any]]:
        return self.rows[:MOST_ROWS]

    def _rest(self, num_columns: int) -> list[str]:
        """What is not shown, in a line; no line where nothing is missing. num_columns: how many columns are missing."""
        num_rows = len(self.rows) - len(self.shown_rows)
        missing = [
            f"{number:,} more {noun}" for number, noun in ((num_rows, "rows"), (num_columns, "columns")) if number
        ]
        return [f"... {' and '.join(missing)}"] if missing else []


class OnScreen(ABC):
    """Something that shows itself on one screen, in a terminal and in a notebook."""

    @abstractmethod
    def screen(self) -> Screen:
        """What is shown."""

    def __repr__(self) -> str:
        return self._screen_or_error().text()

    def _repr_html_(self) -> str:
        return self._screen_or_error().html()

    def _screen_or_error(self) -> Screen:
        """What is shown; where a folder that it is read from is gone, that."""
        try:
            return self.screen()
        except InputError as error:
            return Screen([f"{type(self).__name__}: {error}"])


class Rows(OnScreen, list[dict[str, Any]]):
    """Plain rows, a dict for each, with the same names in all of them."""

    def screen(self) -> Screen:
        names = list(self[0]) if self else []
        number = f"{len(self):,} row{'' if len(self) == 1 else 's'}"
        return Screen([number], names, [[row.get(name) for name in names] for row in self])

    def frame(self) -> Any:
        """The rows as a `pandas.DataFrame`. pandas does not come with this package."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise InputError("a frame needs pandas; pip install pandas, or take the rows as they are") from None
        return pandas.DataFrame(list(self))


def cell_text(value: Any) -> str:
    """A value as a cell shows it: four digits that count, a dash for None, long text cut off."""
    if value is None:
        return "-"
    text = f"{value:.4g}" if isinstance(value, float) else _printable(str(value))
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
