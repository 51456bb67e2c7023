"""Results on one screen: nothing is wider or longer than a screen, and no text of a file becomes markup or an escape sequence."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hsfl.display import MOST_LINES, MOST_ROWS, WIDTH, OnScreen, Rows, Screen
from hsfl.errors import InputError
from tests.naming import names, raises

EVIL = "<script>alert(1)</script>&\x1b[2J"


def test_a_screen_is_a_screen_however_much_there_is_to_show() -> None:
    rows = [[f"client {k}", *range(40)] for k in range(500)]
    text = Screen(["word " * 1000], ["name", *(f"column {place}" for place in range(40))], rows).text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) <= MOST_LINES + MOST_ROWS + 2
    names(lines[-1], f"{500 - MOST_ROWS} more rows", "more columns")
    few = Screen(["two"], ["a", "b"], [[1, 0.123456789], [2, None]]).text()
    assert few.splitlines() == ["two", "a       b", "1  0.1235", "2       -"]


def test_a_result_whose_folder_is_gone_still_has_a_repr() -> None:
    class Gone(OnScreen):
        def screen(self) -> Screen:
            raise InputError("runs/a is missing")

    assert repr(Gone()) == "Gone: runs/a is missing"
    names(Gone()._repr_html_(), "runs/a is missing")


def test_text_of_files_stays_text() -> None:
    screen = Screen([EVIL], [EVIL], [[EVIL]])
    assert "\x1b" not in screen.text() + screen.html()
    assert "<script>" not in screen.html()
    assert screen.html().count("&lt;script&gt;") == 3


def test_rows_are_a_list_and_a_frame_where_pandas_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows([{"a": 1, "b": EVIL}, {"a": 2, "b": None}])
    assert rows == [{"a": 1, "b": EVIL}, {"a": 2, "b": None}]
    names(rows._repr_html_(), "2 rows", "<td>2</td>")
    assert "<script>" not in rows._repr_html_()
    assert repr(Rows()) == "0 rows"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with raises(InputError, "pandas", "pip install"):
        rows.frame()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda given: ("frame", given)))
    frame: Any = rows.frame()
    assert frame == ("frame", list(rows))
