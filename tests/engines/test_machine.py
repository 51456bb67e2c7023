"""Machines that differ are told apart in words; what needs Ray says so where there is none."""

import builtins
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from hsfl.engines.machine import versions
from hsfl.engines.start import start_engine
from hsfl.errors import InputError
from tests.engines.runs import config
from tests.naming import names, raises


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"python": "3.9.1"}, ("Python 3.9.1", "this machine")),
        ({"torch": "1.0"}, ("torch 1.0", "this machine")),
        ({"hsfl": "9.9"}, ("hsfl 9.9", "this machine")),
        ({"sources": "0" * 64}, ("other files of hsfl",)),
        ({"plugins": (("mine.py", "f" * 64),)}, ("plugin mine.py", "sha256 ffffffffffff", "here aaaaaaaaaaaa")),
    ],
)
def test_a_difference_is_told_in_words(change: dict[str, Any], parts: tuple[str, ...]) -> None:
    ours = replace(versions(), plugins=(("mine.py", "a" * 64),))
    assert ours.difference(ours) is None
    names(ours.difference(replace(ours, **change)), *parts)


def test_without_ray_there_is_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    really = builtins.__import__

    def without_ray(name: str, *rest: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return really(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    with raises(InputError, 'pip install "ray', "engine.name=workers"):
        start_engine(config("engine.name=ray"), print)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:1", "127.0.0.1:99999"])
def test_an_address_where_nobody_listens(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is tried before Ray is loaded, so an empty module stands in for Ray where it is not installed."""
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.raises(InputError, match=r"engine\.address"):
        start_engine(config("engine.name=ray", f'engine.address="{address}"'), print)
