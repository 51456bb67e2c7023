"""Ray clusters: an existing one is joined, or one is started on this machine.

Ray lets everyone who reaches its ports run code. The cluster that is started here listens on this machine alone and asks for a
token that only its own processes know; other clusters belong on closed networks (docs/scale.md).
"""

import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from hsfl.errors import InputError

SAID_S = 15.0  # within which the user reads that an address does not answer: the sum of the next three limits
KNOCK_S = 3.0  # for connecting: the host's name is looked up, and all its addresses are tried
LOAD_S = 2.0  # for loading Ray, which no limit cuts short
ANSWER_S = 10.0  # for the cluster's answer
NO_RAY = "engine.name is 'ray' but Ray is not installed; pip install 'hsfl[ray]', or set engine.name=workers"
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "error", "RAY_DEDUP_LOGS": "0"}  # no usage reports


_before: dict[str, str | None] = {}  # variables of the environment, as they were before a cluster was started here


def connect(address: str | None, num_cpus: int) -> list[float]:
    """Join the cluster at an address, or start one on this machine; returns the CPUs of each node."""
    if "ray" not in sys.modules and find_spec("ray") is None:
        raise InputError(NO_RAY)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if address is None:
        made = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        _before.update({name: os.environ.get(name) for name in made if name not in _before})
        os.environ |= made
        how: dict[str, Any] = {"address": "local", "num_cpus": num_cpus, "include_dashboard": False}
        how |= {"_node_ip_address": "127.0.0.1"}
    else:
        _knock(address)
        how = {"address": address}
    try:
        import ray  # here, because Ray takes seconds to load
    except ImportError:
        raise InputError(NO_RAY) from None
    _forget_token()
    try:
        _within(ANSWER_S if address else None, lambda: ray.init(**how, configure_logging=False, log_to_driver=False))
    except TooLate:
        raise InputError(
            f"engine.address {address} takes connections but is no Ray cluster that answers; check it"
        ) from None
    except (Exception, SystemExit) as error:
        with suppress(Exception):
            end()  # ends what had started of the cluster
        raise InputError(_unusable(address, error)) from error
    return [float(node["Resources"].get("CPU", 0.0)) for node in ray.nodes() if node["Alive"]]


def _forget_token() -> None:
    """Let Ray read the token of the cluster anew; it keeps the first token of a process, which another cluster refuses."""
    with suppress(Exception):  # a version of Ray that does not know this keeps no token either, or has another way
        from ray._raylet import AuthenticationTokenLoader

        AuthenticationTokenLoader.instance().reset_cache()


def _knock(address: str) -> None:
    """Refuse text that is no HOST:PORT, and an address where nobody listens."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"engine.address is {address!r}; give HOST:PORT of the head node, such as 10.0.0.1:6379")
    try:
        _within(KNOCK_S, lambda: socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S).close())
    except (OSError, OverflowError) as error:
        raise InputError(
            f"nothing answers at engine.address {address} ({error}); start the head node: ray start --head --port={port}"
        ) from None


class TooLate(TimeoutError):
    """A call took longer than it may."""


def _within(seconds: float | None, call: Callable[[], Any]) -> None:
    """Make a call that may wait for minutes, and raise TooLate after so many seconds; None waits for as long as it
    takes."""
    if seconds is None:
        call()
        return
    caught: list[BaseException] = []

    def guarded() -> None:
        try:
            call()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TooLate(f"no answer in {seconds:g} s")
    if caught:
        raise caught[0]


def _unusable(address: str | None, error: BaseException) -> str:
    if address is None:
        return f"Ray cannot be used: {first_line(error)}; try again when the machine is less busy, or set engine.name=workers"
    return (
        f"the Ray cluster at {address} cannot be used: {first_line(error)}; every node needs the same Python and Ray, and the "
        "token of the cluster (docs/scale.md)"
    )


def end() -> None:
    import ray  # here, because Ray takes seconds to load

    ray.shutdown()
    for name, value in _before.items():  # a cluster that is joined later has a token of its own, or none
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    _before.clear()


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
