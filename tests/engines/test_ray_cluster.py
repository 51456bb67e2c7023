"""An address that does not answer is said within 15 s: the limits of all that is waited for add up to that. No Ray is needed."""

import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hsfl.engines import ray_cluster, ray_engine
from hsfl.errors import InputError
from tests.naming import names, raises

GUIDE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_the_limits_add_up_to_what_the_guide_says() -> None:
    assert ray_cluster.KNOCK_S + ray_cluster.LOAD_S + ray_cluster.ANSWER_S <= ray_cluster.REFUSED_WITHIN_S == 15
    assert f"within {ray_cluster.REFUSED_WITHIN_S:g} s" in GUIDE.read_text()


def fake_ray(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"is_initialized": lambda: False} | more)


def test_whatever_is_waited_for_at_an_address_has_one_of_these_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection and Ray's own call are made within limits, each once, and nothing else reaches for the address."""
    waited: list[float | None] = []
    monkeypatch.setattr(ray_cluster, "_call_within", lambda seconds, call: waited.append(seconds))
    nodes = [{"Alive": True, "Resources": {"CPU": 3.0}}]
    monkeypatch.setitem(sys.modules, "ray", fake_ray(nodes=lambda: nodes))
    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, _never)
    assert ray_cluster.connect("head.example:6379", 1).cpus() == [3.0]
    assert waited == [ray_cluster.KNOCK_S, ray_cluster.ANSWER_S]


def _never(*words: Any, **more: Any) -> None:
    raise AssertionError(f"reached for {words} outside of a limit")


def test_a_call_that_hangs_is_given_up_and_an_error_comes_through() -> None:
    hangs = threading.Event()
    with raises(ray_cluster.TooLate, "0.01 s"):
        ray_cluster._call_within(0.01, hangs.wait)
    hangs.set()
    with pytest.raises(ZeroDivisionError):
        ray_cluster._call_within(5.0, lambda: 1 / 0)


@pytest.mark.parametrize(
    ("slow", "parts"),
    [(ray_cluster.KNOCK_S, ("nothing answers", "engine.address head.example:6379", "no answer in")),
     (ray_cluster.ANSWER_S, ("head.example:6379 takes connections", "no Ray cluster"))],
)  # fmt: skip
def test_what_is_said_when_a_limit_is_reached(
    slow: float, parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def within(seconds: float, call: Callable[[], Any]) -> None:
        if seconds == slow:
            raise ray_cluster.TooLate(f"no answer in {seconds:g} s")

    monkeypatch.setattr(ray_cluster, "_call_within", within)
    monkeypatch.setitem(sys.modules, "ray", fake_ray())
    with raises(InputError, *parts):
        ray_cluster.connect("head.example:6379", 1)


@pytest.mark.parametrize(
    "address", ["ray://127.0.0.1:10001", "http://127.0.0.1:8265", "127.0.0.1:99999", "127.0.0.1:0"]
)
def test_what_is_no_address_of_a_head_node_is_said_so(address: str) -> None:
    with raises(InputError, "HOST:PORT"):
        ray_cluster._check_somebody_listens(address)


def test_without_ray_nobody_reaches_for_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    monkeypatch.setattr(ray_cluster, "_check_somebody_listens", _never)
    with raises(InputError, "Ray", "installed"):
        ray_cluster.connect("head.example:6379", 1)


@pytest.mark.parametrize("token", [None, "of the user's own cluster"])
def test_a_cluster_of_this_machine_leaves_the_users_token_and_mode_as_they_were(
    token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ray_cluster.QUIET:
        monkeypatch.setenv(name, "0")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    seen: list[str | None] = []
    fake = fake_ray(init=lambda **how: seen.append(os.environ.get("RAY_AUTH_TOKEN")), shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", fake)
    started = ray_cluster.connect(None, 1)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert seen[0] not in (None, token)
    started.end()
    assert (os.environ.get("RAY_AUTH_MODE"), os.environ.get("RAY_AUTH_TOKEN")) == (None, token)


def test_a_cluster_that_does_not_start_is_ended_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray gives its own processes 30 s to start, which a busy machine may exceed."""
    ended: list[bool] = []

    def late(**how: Any) -> None:
        raise RuntimeError("The current node timed out during startup.\nThis could happen")

    for name in (*ray_cluster.QUIET, "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setitem(sys.modules, "ray", fake_ray(init=late, shutdown=lambda: ended.append(True)))
    with raises(InputError, "timed out during startup.", "try again", "engine.name=workers"):
        ray_cluster.connect(None, 1)
    assert ended
    assert os.environ["RAY_AUTH_TOKEN"] == "0"


def test_a_cluster_that_the_users_script_has_joined_is_used_and_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = fake_ray(
        is_initialized=lambda: True,
        get_runtime_context=lambda: SimpleNamespace(gcs_address="10.0.0.1:6379"),
        init=_never, shutdown=_never,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", joined)
    for address in (None, "10.0.0.1:6379"):
        ray_cluster.connect(address, 1).end()
    with raises(InputError, "10.0.0.1:6379", "leave engine.address out"):
        ray_cluster.connect("10.0.0.2:6379", 1)
    joined.get_runtime_context = _never
    with pytest.raises(InputError, match="through ray://"):
        ray_cluster.connect(None, 1)


class Told(Exception):
    """In the place of Ray's own error."""


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        (
            "The actor died (pid=7, ip=10.0.0.2)\nRuntimeError: Actor failed to import\n  ModuleNotFoundError: No module named 'hsfl'\n",
            ("node 10.0.0.2 ", "No module named 'hsfl'", "install on it"),
        ),
        (
            "ray::greet()\nImportError: cannot import name 'x'\n",
            ("a node of the cluster", "cannot import name 'x'", "install on it"),
        ),
        (
            "ray::greet()\nimportlib.metadata.PackageNotFoundError: No package metadata was found for hsfl\n",
            ("a node of the cluster", "PackageNotFoundError", "install on it"),
        ),
        ("The actor died\nMemoryError: Unable to allocate 8 GiB\n", None),
        ("The actor died\nMemoryError\n", None),
        ("The actor died\nOSError: [Errno 12] Cannot allocate memory\n", None),
        ("The actor died unexpectedly\nWorker exit type: SYSTEM_ERROR Worker exit detail: RpcError: reset\n", None),
        ("The node is gone\n", None),
    ],
)
def test_a_node_without_hsfl_is_said_and_other_deaths_are_not_taken_for_it(
    said: str, parts: tuple[str, ...] | None
) -> None:
    def get(answers: Any) -> None:
        raise Told(said)

    engine = object.__new__(ray_engine.OnRay)
    engine.ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=Told))
    new = ray_engine.Remote(where="a new worker", actor=None, answers=deque([None]))
    assert engine._receive(replace(new, greets=False)) == [None], "it has started before"
    (answer,) = engine._receive(new)
    assert (answer is None) == (parts is None)
    if parts is not None:
        names(answer.error(), *parts)
