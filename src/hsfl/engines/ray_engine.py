"""The engine `ray`: workers on the nodes of a Ray cluster, an existing one or one that is started on this machine.

The data, and the model of each round, are put into Ray's object store, which holds them once on each node. Nodes need the same
Python, torch, hsfl and plugins as this machine, and no data folder. `Actor` is the worker on its node; `OnRay` is the engine in the run's
process. Ray is imported inside functions, since it is an extra and takes seconds to load.
"""

import os
import re
import socket
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hsfl import plugins
from hsfl.config import RunConfig
from hsfl.engines.machine import Versions, num_cores, versions, warn_of_cores
from hsfl.engines.ray_cluster import Cluster, connect, first_line
from hsfl.engines.worker import Answer, BatchBegun, CarriedOut, Failed, Order, Setup, Train, Worker
from hsfl.engines.worker_engine import Helper, Ordered, WorkerEngine
from hsfl.errors import InputError
from hsfl.frameworks.framework import State
from hsfl.models.state import UnitState, dense

Crossing = tuple[np.ndarray, torch.Size, tuple[int, ...]]  # a tensor's stretch of memory, its shape and its strides
START_S = 120.0  # within which a worker must have started
END_S = 10.0  # for which a worker that is just starting is awaited before it is ended
LONG_S = 1.0  # an order that takes longer is answered in a stream, with progress; a stream costs Ray some milliseconds


def _array_of(tensor: torch.Tensor) -> Crossing:
    """A tensor as it crosses the object store, which would not keep the order of an array's dimensions in memory."""
    tensor = dense(tensor)
    return tensor.as_strided((tensor.numel(),), (1,)).numpy(), tensor.shape, tensor.stride()


def _stored_tensor(crossing: Crossing) -> torch.Tensor:
    """A tensor over an array of the object store, which many processes read and nobody may write to."""
    array, shape, strides = crossing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it says that the array cannot be written to
        return torch.from_numpy(array).as_strided(shape, strides)


def _share_tensors() -> None:
    """Let tensors cross the object store as arrays, which all processes of a node read in place."""
    import ray.util  # here, because Ray takes seconds to load

    ray.util.register_serializer(torch.Tensor, serializer=_array_of, deserializer=_stored_tensor)


def _forget_tensors() -> None:
    """Let tensors cross as before: a script that goes on using Ray gets tensors of its own again."""
    import ray.util  # here, because Ray takes seconds to load

    ray.util.deregister_serializer(torch.Tensor)


class Actor:
    """A worker's life on a node: it says which versions it has, takes the setup, and carries out orders."""

    def __init__(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        _share_tensors()
        self.begun: list[BatchBegun] = []

    def greet(self, specs: list[str]) -> tuple[str, Versions | Failed]:
        """Where this worker is, and its versions, or why a plugin cannot be loaded.

        specs: the plugins that the run has loaded. Here they are loaded from the node's own files.
        """
        where = f"node {_address()} ({socket.gethostname()}), process {os.getpid()}"
        try:
            plugins.load_plugins_of(specs)
        except Exception as error:
            return where, Failed.by(error)
        return where, versions()

    def take(self, references: list[Any]) -> CarriedOut | Failed:
        """Take the setup, which lies in the object store.

        references: a list with the one reference to it.
        """
        import ray  # here, because Ray takes seconds to load

        try:
            setup: Setup = ray.get(references[0])
        except Exception as error:
            message = f"cannot load the model ({_last_line(error)}); put the file that defines it there, at the same path, or register it in a plugin"
            return Failed("InputError", message)
        task = setup.task
        feed = replace(task.feed)  # a copy of our own, since the worker writes its observer into it
        try:
            self.worker = Worker(replace(setup, task=replace(task, feed=feed)), self.begun.append)
        except (Exception, SystemExit) as error:
            return Failed.by(error)
        return CarriedOut()

    def carry_out(self, order: Order, model: State | UnitState | None) -> list[Answer]:
        """Carry out an order; returns progress and then the result.

        model: the state of the round or the model to be tested, which the object store holds once on each node; None stands for
            the one of the order before.
        """
        try:
            if isinstance(model, State):
                self.worker.state = model
            elif model is not None:
                self.worker.whole = model
            result = self.worker.carry_out(order)
        except (Exception, SystemExit) as error:
            return [Failed.by(error)]
        return [*self._progress(), result]

    def train_long(self, order: Train, model: State | None) -> Iterator[list[Answer]]:
        """Carry out an order that takes long: client by client, with progress after each."""
        for place, client in enumerate(order.clients, start=1):
            last = place == len(order.clients)
            client_order = replace(order, clients=(client,), hand=order.hand and last)
            *progress, result = self.carry_out(client_order, model if place == 1 else None)
            ended = last or isinstance(result, Failed)
            yield [*progress, result] if ended else progress
            if ended:
                return

    def _progress(self) -> list[BatchBegun]:
        begun = self.begun.copy()
        self.begun.clear()
        return [BatchBegun(begun[-1].client, sum(message.num_samples for message in begun))] if begun else []


def _last_line(error: BaseException) -> str:
    """What an error of Ray's says last, which is what was wrong."""
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    return lines[-1][:200] if lines else type(error).__name__


def _address() -> str:
    import ray.util  # here, because Ray takes seconds to load

    return str(ray.util.get_node_ip_address())


def _actor_class() -> Any:
    import ray  # here, because Ray takes seconds to load

    return ray.remote(Actor)


@dataclass(kw_only=True)
class Remote(Helper):
    """One worker on a node."""

    actor: Any
    # For each order the reference to its answers, or a stream of such references; before that, the reference to the greeting.
    answers: deque[Any]
    has: Any = None  # the reference to the state, or to the model to be tested, that the worker was given last
    greets: bool = True  # whether the worker's greeting is awaited


class OnRay(WorkerEngine[Remote]):
    """Workers on the nodes of a Ray cluster."""

    advice = "see with `ray status` whether the nodes are alive; if memory is short, lower engine.workers"

    def __init__(self, cluster: Cluster, num_workers: int, num_threads: int, say: Callable[[str], None]) -> None:
        import ray  # here, because Ray takes seconds to load

        self.ray, self.cluster, self.num_threads, self.say = ray, cluster, num_threads, say
        self.setup: Any = None  # references into the object store
        self.given: Any = None
        _share_tensors()
        self.actor_class = _actor_class().options(
            num_cpus=num_threads, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        self.helpers = [self._start() for _ in range(num_workers)]

    @classmethod
    def start(cls, config: RunConfig, say: Callable[[str], None]) -> "OnRay":
        """As many workers as the config says, else as many as the cluster's CPUs have room for, with `engine.threads`
        CPUs each; never more than a round has clients."""
        threads = config.engine.threads or 1
        cluster = connect(config.engine.address, max(num_cores(), (config.engine.workers or 1) * threads))
        try:
            return cls(cluster, cls._num_workers(config, cluster, threads, say), threads, say)
        except BaseException:
            cluster.end()
            raise

    @staticmethod
    def _num_workers(config: RunConfig, cluster: Cluster, threads: int, say: Callable[[str], None]) -> int:
        engine, most = config.engine, config.train.clients_per_round or config.fleet.num_clients
        room = sum(int(cpu // threads) for cpu in cluster.cpus())
        asked = engine.workers or max(min(room, most), 1)
        if asked > most:
            say(f"engine.workers is {asked} but a round has {most} clients; {most} workers are started")
        num_workers = min(asked, most)
        if engine.address is None:
            warn_of_cores(num_workers, threads, num_cores(), say)
        if num_workers > room:
            if room == 0:
                raise InputError(f"no node of the cluster has {threads} CPUs for a worker; lower engine.threads")
            say(f"engine.workers is {num_workers} but the cluster has room for {room}; {room} workers are started")
        return min(num_workers, room)

    def _start(self) -> Remote:
        actor = self.actor_class.remote(self.num_threads)
        greeting = actor.greet.remote(list(plugins.LOADED))
        new = Remote(where="a new worker", actor=actor, answers=deque([greeting]))
        new.given(Ordered(alone=True))
        return new

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
                    helper.answered()

    def _give_state(self, state: State) -> None:
        self.given = self.ray.put(state)

    def _give_whole(self, whole: UnitState) -> None:
        self.given = self.ray.put(whole)

    def _order(self, helper: Remote, order: Order) -> None:
        new = None if helper.has is self.given else self.given  # the worker keeps it for the orders that follow
        helper.has = self.given
        if isinstance(order, Train) and (helper.pace is None or helper.orders[-1].samples > LONG_S * helper.pace):
            call = helper.actor.train_long.options(num_returns="streaming")
        else:
            call = helper.actor.carry_out
        helper.answers.append(call.remote(order, new))

    def _answers(self, busy: Sequence[Remote]) -> Iterator[tuple[Remote, Answer | None]]:
        by_answers = {helper.answers[0]: helper for helper in busy}
        ready, _ = self.ray.wait(list(by_answers), num_returns=1, timeout=START_S / 4)
        for answers in ready:
            for answer in self._receive(by_answers[answers]):
                yield by_answers[answers], answer
        if not ready and all(helper.greets for helper in busy):
            late = [helper for helper in busy if time.monotonic() - helper.since_s > START_S]
            if late:
                raise InputError(
                    f"no worker of the cluster has started for {START_S:g} s; see with `ray status` whether nodes are "
                    f"alive and have {self.num_threads} free CPUs, or lower engine.workers"
                )

    def _receive(self, helper: Remote) -> list[Answer | None]:
        """A worker's next answers; None if the worker is dead."""
        first = helper.answers[0]
        streams = isinstance(first, Iterator)
        try:
            answers = self.ray.get(next(first) if streams else first)
        except StopIteration:
            return [None]  # a stream ends early where the worker has died
        except self.ray.exceptions.RayError as error:
            if helper.greets and (message := _start_failure(error)) is not None:
                return [Failed("InputError", message)]
            helper.where = helper.where if helper.where != "a new worker" else f"a new worker ({first_line(error)})"
            return [None]
        if helper.greets:
            helper.answers.popleft()
            return self._take_greeting(helper, answers)
        if any(not isinstance(answer, BatchBegun) for answer in answers):
            helper.answers.popleft()
        return [_copied_from_store(answer, first=not self.last_round) for answer in answers]

    def _take_greeting(self, helper: Remote, greeting: Any) -> list[Answer | None]:
        """Check a worker's greeting, and let the worker take the setup; nothing is returned yet. Or, where it has taken the setup, return
        how that went."""
        if not isinstance(greeting, tuple):
            helper.greets = False
            return [
                Failed(greeting.kind, f"{helper.where} {greeting.message}")
                if isinstance(greeting, Failed)
                else greeting
            ]
        helper.where, worker_versions = greeting
        if isinstance(worker_versions, Failed):
            message = f"{helper.where}: {worker_versions.message}; put the plugin's file there, at the same path"
            return [Failed(worker_versions.kind, message)]
        if (difference := versions().difference(worker_versions)) is not None:
            return [Failed("InputError", f"{helper.where} {difference}")]
        helper.answers.append(helper.actor.take.remote([self.setup]))  # in a list, so that the worker unpacks it itself
        return []

    def _cause_of_death(self, dead: Remote) -> str:
        return "its process or its node is gone, perhaps for want of memory"

    def _replace(self, dead: Remote) -> Remote:
        with suppress(Exception):
            self.ray.kill(dead.actor)
        return self._start()

    def close(self) -> None:
        """End all workers, and the cluster if it was started for this run. Ray dies of a worker that is ended while it starts, so those
        that have just been started are awaited."""
        if new := [helper.answers[0] for helper in self.helpers if helper.greets and helper.answers]:
            with suppress(Exception):
                self.ray.wait(new, num_returns=len(new), timeout=END_S)
        for helper in self.helpers:
            with suppress(Exception):
                self.ray.kill(helper.actor)
        _forget_tensors()
        self.cluster.end()


def _copied_from_store(answer: Answer, first: bool) -> Answer:
    """The answer with what outlives the round copied out of the object store, where nobody may write: heads, and the first sum of a round,
    to which the others are added."""
    if not isinstance(answer, CarriedOut) or answer.shard is None:
        return answer
    shard = answer.shard
    heads = {client: head.clone() for client, head in shard.heads.items()}
    return CarriedOut(replace(shard, total=shard.total.clone() if first else shard.total, heads=heads))


def _start_failure(error: BaseException) -> str | None:
    """Why a node cannot start a worker, where Python says it there: a module is missing, or hsfl is too old. None if a process or a node is
    gone, or has no memory left."""
    text = str(error)
    lines = re.findall(r"^\s*([\w.]*(?:Error|Exception|Exit)(?:: .*)?)$", text, re.MULTILINE)
    if not lines or "memory" in lines[-1].lower():  # for want of memory: another try may have it
        return None
    place = re.search(r"\bip=([\w.:]+)", text)
    node = f"node {place[1]}" if place else "a node of the cluster"
    return f"{node} cannot start a worker: {lines[-1][:200]}; install on it what is here"
