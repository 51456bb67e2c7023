"""Every row of the table of frameworks has its class, its clock and its look."""

import pytest

from hsfl.errors import InputError
from hsfl.framework_table import METHODS, Method, Timing, register
from hsfl.frameworks import find_framework
from tests.naming import raises


@pytest.mark.parametrize("name", METHODS)
def test_a_row_finds_its_class(name: str) -> None:
    code, row = find_framework(name), METHODS[name]
    assert row.name == name
    assert row.title
    assert row.paper
    for need in ("init", "round", "models", "arrange", "extras"):
        assert callable(getattr(code, need))
    assert len(row.style) == 3


def test_a_name_is_taken_once() -> None:
    with raises(InputError, "'hsfl'", "from hsfl", "another name"):
        register(Method("hsfl", "Mine", "", Timing(), "x:Y", ("#000000", "o", "solid")))


def test_an_unknown_name_suggests_the_nearest() -> None:
    with raises(InputError, "did you mean splitfed_v1"):
        find_framework("spiltfed_v1")
