"""Ray clusters: an existing one is joined, or one is started on this machine.

Ray lets everyone who reaches its ports run code. The cluster that is started here listens on this machine alone and asks for a
token that only its own processes know; other clusters belong on closed networks (docs/scale.md).
"""

import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from hsfl.engines.ray_leftovers import LeftoverWatch
from hsfl.errors import InputError, install_extra

REFUSED_WITHIN_S = 15.0  # an address that does not answer is refused within this time: the sum of the next three limits
KNOCK_S = 3.0  # for connecting: the host's name is looked up, and all its addresses are tried
LOAD_S = 2.0  # for loading Ray, which no limit cuts short
ANSWER_S = 10.0  # for the cluster's answer
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "error", "RAY_DEDUP_LOGS": "0"}  # no usage reports

ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": a cluster of one machine, for the processes that Ray starts


@dataclass(frozen=True)
class Cluster:
    """This process's connection to a cluster."""

    is_ours: bool  # False where the user's script had made the connection before; then it outlives the run
    undo: ExitStack = field(default_factory=ExitStack)  # puts back what was changed in this process for the connection

    def cpus(self) -> list[float]:
        """The CPUs of each node."""
        import ray  # here, because Ray takes seconds to load

        return [float(node["Resources"].get("CPU", 0.0)) for node in ray.nodes() if node["Alive"]]

    def end(self) -> None:
        """End the connection, and with it a cluster that was started here."""
        import ray  # here, because Ray takes seconds to load

        if self.is_ours:
            ray.shutdown()
        self.undo.close()


def connect(address: str | None, num_cpus: int) -> Cluster:
    """Join the cluster at an address, or the one that this process has joined already; else start one on this machine."""
    if "ray" not in sys.modules and find_spec("ray") is None:
        raise _no_ray()
    if getattr(sys.modules.get("ray"), "is_initialized", bool)():
        return _joined_before(address)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    cluster = Cluster(True)
    if address is None:
        _set_token(cluster.undo)
        _keep_to_loopback(cluster.undo)
        init_arguments: dict[str, Any] = {"address": "local", "num_cpus": num_cpus, "include_dashboard": False}
        init_arguments |= {"_node_ip_address": "127.0.0.1"}
    else:
        _check_somebody_listens(address)
        init_arguments = {"address": address}
    try:
        import ray  # here, because Ray takes seconds to load
    except ImportError:
        raise _no_ray() from None
    _reread_environment()
    _silence_ray(cluster.undo)
    try:
        with _uninterrupted():
            _call_within(
                ANSWER_S if address else None,
                lambda: ray.init(**init_arguments, configure_logging=False, log_to_driver=False),
            )
    except TooLate:
        raise InputError(
            f"engine.address {address} takes connections but is no Ray cluster that answers; check it"
        ) from None
    except BaseException as error:
        with suppress(Exception):
            cluster.end()  # ends what had started of the cluster
        if isinstance(error, KeyboardInterrupt):
            raise
        raise InputError(_unusable_sentence(address, error)) from error
    if address is None:
        _watch_leftovers(cluster.undo)
    return cluster


def _watch_leftovers(undo: ExitStack) -> None:
    with suppress(Exception):  # a version of Ray that keeps its processes elsewhere
        from ray._private import worker

        undo.callback(LeftoverWatch(worker._global_node.all_processes["raylet"][0].process.pid).end)


def _no_ray() -> InputError:
    return InputError(
        f"engine.name is 'ray' but Ray is not installed; {install_extra('ray')}, or set engine.name=workers"
    )


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the block has ended: what has begun to start can be ended whole only when it has started."""
    signals = list[int]()
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: signals.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if signals:
            raise KeyboardInterrupt


def _joined_before(address: str | None) -> Cluster:
    """The cluster that the user's script has joined or started by `ray.init`."""
    import ray  # here, because Ray takes seconds to load

    try:
        joined = str(ray.get_runtime_context().gcs_address)
    except Exception:  # through ray://, where this process is no part of the cluster
        raise InputError(
            "this process has joined a Ray cluster through ray://; call ray.shutdown() and give engine.address HOST:PORT of the head node"
        ) from None
    if address not in (None, joined):
        raise InputError(
            f"engine.address is {address} but this process has joined the Ray cluster at {joined}; leave engine.address out, or "
            "call ray.shutdown() before"
        )
    return Cluster(False)


def _set_token(undo: ExitStack) -> None:
    """A token for a cluster that is started here; one that is joined later has a token of its own, or none."""
    undo.callback(_reread_environment)
    for name, value in {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}.items():
        undo.callback(_set_variable, name, os.environ.get(name))
        _set_variable(name, value)


def _keep_to_loopback(undo: ExitStack) -> None:
    """Let Ray's node be 127.0.0.1, as it is asked to. Except on Windows and macOS Ray takes the machine's own address instead, where there is
    one, and all processes listen on every address."""
    with suppress(Exception):  # a version of Ray without this
        from ray._private import ray_constants

        undo.callback(setattr, ray_constants, "ENABLE_RAY_CLUSTER", ray_constants.ENABLE_RAY_CLUSTER)
        ray_constants.ENABLE_RAY_CLUSTER = False
    undo.callback(_set_variable, ONE_MACHINE, os.environ.get(ONE_MACHINE))
    _set_variable(ONE_MACHINE, "0")


def _set_variable(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


def _silence_ray(undo: ExitStack) -> None:
    """Let Ray print nothing of its own to standard output, where a program may read our answer: not even of a worker that died,
    which we say ourselves."""
    with suppress(Exception):  # a version of Ray that prints in another way
        from ray._private import worker

        undo.callback(setattr, worker, "print_to_stdstream", worker.print_to_stdstream)
        worker.print_to_stdstream = lambda *args, **kwargs: None


def _reread_environment() -> None:
    """Let Ray look at its mode and token again. It reads its mode when it is imported and keeps the first token of a process, which
    another cluster refuses."""
    with suppress(Exception):  # a version of Ray that does not know this keeps neither, or has another way
        from ray._raylet import AuthenticationTokenLoader, Config

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()


def _check_somebody_listens(address: str) -> None:
    """Refuse text that is no HOST:PORT, and an address where nobody listens."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"engine.address is {address!r}; give HOST:PORT of the head node, such as 10.0.0.1:6379")
    try:
        _call_within(KNOCK_S, lambda: socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S).close())
    except (OSError, OverflowError) as error:
        raise InputError(
            f"nothing answers at engine.address {address} ({error}); start the head node: ray start --head --port={port}"
        ) from None


class TooLate(TimeoutError):
    """A call took longer than it may."""


def _call_within(seconds: float | None, call: Callable[[], Any]) -> None:
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


def _unusable_sentence(address: str | None, error: BaseException) -> str:
    if address is None:
        return f"Ray cannot be used: {first_line(error)}; try again when the machine is less busy, or set engine.name=workers"
    return (
        f"the Ray cluster at {address} cannot be used: {first_line(error)}; every node needs the same Python and Ray, and the "
        "token of the cluster (docs/scale.md)"
    )


def first_line(error: BaseException) -> str:
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    return lines[0][:200] if lines else type(error).__name__
