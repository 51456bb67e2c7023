"""The engine `ray`: workers on the nodes of a Ray cluster, an existing one or one that is started on this machine.

The data, and the model of each round, are put into Ray's object store, which holds them once on each node. Nodes need the same
Python, torch, hsfl and plugins as this machine, and no data folder.

Ray lets everyone who reaches its ports run code. The cluster that is started here listens on this machine alone and asks for a
token that only its own processes know; other clusters belong on closed networks (docs/scale.md).
"""

import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from hsfl import plugins
from hsfl.config import RunConfig
from hsfl.engines.actor import actor_class, share_tensors
from hsfl.engines.cores import num_cores, warn_of_cores
from hsfl.engines.spread import Helper, Spread
from hsfl.engines.versions import versions
from hsfl.engines.worker import Answer, CarriedOut, Failed, Order, Setup
from hsfl.errors import InputError
from hsfl.frameworks.base import State
from hsfl.frameworks.parallel import Shard
from hsfl.models.state import UnitState

SAID_S = 15.0  # within which the user reads that an address does not answer: the sum of the next three limits
KNOCK_S = 3.0  # for connecting: the host's name is looked up, and all its addresses are tried
LOAD_S = 2.0  # for loading Ray, which no limit cuts short
ANSWER_S = 10.0  # for the cluster's answer
START_S = 120.0  # within which a worker must have started
NO_RAY = "engine.name is 'ray' but Ray is not installed; pip install 'hsfl[ray]', or set engine.name=workers"
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "error", "RAY_DEDUP_LOGS": "0"}  # no usage reports


_before: dict[str, str | None] = {}  # variables of the environment, as they were before a cluster was started here


@dataclass(kw_only=True)
class Remote(Helper):
    """One worker on a node."""

    actor: Any
    answers: Any  # a stream of references to the answers of the current order, or the reference to the greeting
    greets: bool = True  # whether the worker's greeting is awaited
    began_s: float = 0.0  # when the worker was started, on the monotonic clock


class OnRay(Spread[Remote]):
    """Workers on the nodes of a Ray cluster."""

    def __init__(self, num_workers: int, num_threads: int, say: Callable[[str], None]) -> None:
        import ray  # here, because Ray takes seconds to load

        self.ray, self.num_threads, self.say = ray, num_threads, say
        self.setup: Any = None  # references into the object store
        self.given: Any = None
        share_tensors()
        self.actor_class = actor_class().options(
            num_cpus=num_threads, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        self.helpers = [self._start() for _ in range(num_workers)]

    @classmethod
    def start(cls, config: RunConfig, say: Callable[[str], None]) -> "OnRay":
        """As many workers as the config says, else as many as the cluster's CPUs have room for, with `engine.threads`
        CPUs each; never more than a round has clients."""
        engine, most = config.engine, config.train.clients_per_round or config.fleet.num_clients
        threads = engine.threads or 1
        cpus = _connect(engine.address, max(num_cores(), (engine.workers or 1) * threads))
        room = sum(int(cpu // threads) for cpu in cpus)
        asked = engine.workers or max(min(room, most), 1)
        if asked > most:
            say(f"engine.workers is {asked} but a round has {most} clients; {most} workers are started")
        num_workers = min(asked, most)
        if engine.address is None:
            warn_of_cores(num_workers, threads, num_cores(), say)
        if num_workers > room:
            if room == 0:
                _end()
                raise InputError(f"no node of the cluster has {threads} CPUs for a worker; lower engine.threads")
            say(f"engine.workers is {num_workers} but the cluster has room for {room}; {room} workers are started")
        try:
            return cls(min(num_workers, room), threads, say)
        except BaseException:
            _end()
            raise

    def _start(self) -> Remote:
        actor = self.actor_class.remote(self.num_threads)
        greeting = actor.greet.remote(list(plugins.LOADED))
        return Remote(where="a new worker", actor=actor, answers=greeting, busy=True, began_s=time.monotonic())

    def _give_setup(self, setup: Setup) -> None:
        """Put the setup into the object store; a worker takes the setup after its greeting. All greetings are awaited
        here, so that nodes that differ are refused before the first round."""
        try:
            self.setup = self.ray.put(setup)
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"the model cannot be sent to workers ({error}); define it at the top of a file") from None
        while waiting := [helper for helper in self.helpers if helper.greets]:
            for helper, answer in self._answers(waiting):
                if isinstance(answer, Failed):
                    raise answer.error()
                if answer is None:
                    self._bury(helper)
                else:
                    helper.busy = False

    def _give_state(self, state: State) -> None:
        self.given = self.ray.put(state)

    def _give_whole(self, whole: UnitState) -> None:
        self.given = self.ray.put(whole)

    def _order(self, helper: Remote, order: Order) -> None:
        helper.answers = helper.actor.carry_out.options(num_returns="streaming").remote(order, self.given)

    def _answers(self, busy: Sequence[Remote]) -> Iterator[tuple[Remote, Answer | None]]:
        by_answers = {helper.answers: helper for helper in busy}
        ready, _ = self.ray.wait(list(by_answers), num_returns=1, timeout=START_S / 4)
        for answers in ready:
            yield by_answers[answers], self._next(by_answers[answers])
        if not ready and all(helper.greets for helper in busy):
            late = [helper for helper in busy if time.monotonic() - helper.began_s > START_S]
            if late:
                raise InputError(
                    f"no worker of the cluster has started for {START_S:g} s; see with `ray status` whether nodes are "
                    f"alive and have {self.num_threads} free CPUs, or lower engine.workers"
                )

    def _next(self, helper: Remote) -> Answer | None:
        """A worker's next answer; None if the worker is dead."""
        try:
            if helper.greets:
                return self._greeted(helper, *self.ray.get(helper.answers))
            answer = self.ray.get(next(helper.answers))
        except StopIteration:
            return None  # a stream ends early where the worker has died
        except self.ray.exceptions.RayError as error:
            if helper.greets and (missing := _missing(error)) is not None:
                return Failed(
                    "InputError", f"a node of the cluster cannot start a worker: {missing}; install on it what is here"
                )
            helper.where = helper.where if helper.where != "a new worker" else f"a new worker ({_first_line(error)})"
            return None
        return _writable(answer)

    def _greeted(self, helper: Remote, where: str, found: Any) -> Answer:
        helper.where, helper.greets = where, False
        if isinstance(found, Failed):
            return Failed(found.kind, f"{where}: {found.words}; put the plugin's file there, at the same path")
        words = versions().difference(found)
        if words is not None:
            return Failed("InputError", f"{where} {words}")
        helper.actor.take.remote(self.setup)
        return CarriedOut()

    def _how(self, dead: Remote) -> str:
        return "its process or its node is gone, perhaps for want of memory"

    def _replace(self, dead: Remote) -> Remote:
        with suppress(Exception):
            self.ray.kill(dead.actor)
        return self._start()

    def close(self) -> None:
        """End all workers, and the cluster if it was started here."""
        for helper in self.helpers:
            with suppress(Exception):
                self.ray.kill(helper.actor)
        _end()


def _writable(answer: Answer) -> Answer:
    """The answer with its shard copied out of the object store, where nobody may write: a round's shards are added to
    the first of them."""
    if not isinstance(answer, CarriedOut) or answer.shard is None:
        return answer
    shard = answer.shard
    heads = {client: head.clone() for client, head in shard.heads.items()}
    return CarriedOut(Shard(shard.total.clone(), heads, shard.losses, shard.bytes))


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def _missing(error: BaseException) -> str | None:
    """Which module is missing on a node, in the words of Python's error there; None if the error is another one."""
    lines = [line.strip() for line in str(error).splitlines() if "ModuleNotFoundError: " in line]
    return lines[-1].partition("ModuleNotFoundError: ")[2][:200] if lines else None


def _connect(address: str | None, num_cpus: int) -> list[float]:
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
            _end()  # ends what had started of the cluster
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
        return f"Ray cannot be used: {_first_line(error)}; try again when the machine is less busy, or set engine.name=workers"
    return (
        f"the Ray cluster at {address} cannot be used: {_first_line(error)}; every node needs the same Python and Ray, and the "
        "token of the cluster (docs/scale.md)"
    )


def _end() -> None:
    import ray  # here, because Ray takes seconds to load

    ray.shutdown()
    for name, value in _before.items():  # a cluster that is joined later has a token of its own, or none
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    _before.clear()
