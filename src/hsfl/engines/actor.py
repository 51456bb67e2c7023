"""The worker as an actor of Ray, on any node of a cluster. Nothing here is imported unless Ray is installed."""

import os
import socket
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hsfl import plugins
from hsfl.engines.versions import Versions, versions
from hsfl.engines.worker import Answer, BatchBegun, CarriedOut, Failed, Order, Setup, Train, Worker
from hsfl.frameworks.base import State
from hsfl.models.state import UnitState, dense

Crossing = tuple[np.ndarray, torch.Size, tuple[int, ...]]  # a tensor's stretch of memory, its shape and its strides


def array_of(tensor: torch.Tensor) -> Crossing:
    """A tensor as it crosses the object store, which would not keep the order of an array's dimensions in memory."""
    tensor = dense(tensor)
    return tensor.as_strided((tensor.numel(),), (1,)).numpy(), tensor.shape, tensor.stride()


def tensor_of(crossing: Crossing) -> torch.Tensor:
    """A tensor over an array of the object store, which many processes read and nobody may write to."""
    array, shape, strides = crossing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it says that the array cannot be written to
        return torch.from_numpy(array).as_strided(shape, strides)


def share_tensors() -> None:
    """Let tensors cross the object store as arrays, which all processes of a node read in place."""
    import ray.util  # here, because Ray takes seconds to load

    ray.util.register_serializer(torch.Tensor, serializer=array_of, deserializer=tensor_of)


def forget_tensors() -> None:
    """Let tensors cross as before: a script that goes on using Ray gets tensors of its own again."""
    import ray.util  # here, because Ray takes seconds to load

    ray.util.deregister_serializer(torch.Tensor)


class Actor:
    """A worker's life on a node: it says which versions it has, takes the setup, and carries out orders."""

    def __init__(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        share_tensors()
        self.heard: list[BatchBegun] = []

    def greet(self, specs: list[str]) -> tuple[str, Versions | Failed]:
        """Where this worker is, and its versions, or why a plugin cannot be loaded.

        specs: the plugins that the run has loaded. Here they are loaded from the node's own files.
        """
        where = f"node {_address()} ({socket.gethostname()}), process {os.getpid()}"
        try:
            plugins.load_all(specs)
        except Exception as error:
            return where, Failed.by(error)
        return where, versions()

    def take(self, where: list[Any]) -> CarriedOut | Failed:
        """Take the setup, which lies in the object store.

        where: the one reference to it.
        """
        import ray  # here, because Ray takes seconds to load

        try:
            setup: Setup = ray.get(where[0])
        except Exception as error:
            words = f"cannot load the model ({_last_line(error)}); put the file that defines it there, at the same path, or register it in a plugin"
            return Failed("InputError", words)
        task = setup.task
        feed = replace(task.feed)  # a copy of our own, since the worker writes its observer into it
        try:
            self.worker = Worker(replace(setup, task=replace(task, feed=feed)), self.heard.append)
        except (Exception, SystemExit) as error:
            return Failed.by(error)
        return CarriedOut()

    def carry_out(self, order: Order, given: State | UnitState | None) -> list[Answer]:
        """Carry out an order; returns progress and then the result.

        given: the state of the round or the model to be tested, which the object store holds once on each node; None: the one of
            the order before.
        """
        try:
            if isinstance(given, State):
                self.worker.state = given
            elif given is not None:
                self.worker.whole = given
            result = self.worker.carry_out(order)
        except (Exception, SystemExit) as error:
            return [Failed.by(error)]
        return [*self._progress(), result]

    def train_long(self, order: Train, given: State | None) -> Iterator[list[Answer]]:
        """Carry out an order that takes long: client by client, with progress after each."""
        for place, client in enumerate(order.clients, start=1):
            last = place == len(order.clients)
            part = replace(order, clients=(client,), hand=order.hand and last)
            *progress, result = self.carry_out(part, given if place == 1 else None)
            ended = last or isinstance(result, Failed)
            yield [*progress, result] if ended else progress
            if ended:
                return

    def _progress(self) -> list[BatchBegun]:
        heard = self.heard.copy()
        self.heard.clear()
        return [BatchBegun(heard[-1].client, sum(one.num_samples for one in heard))] if heard else []


def _last_line(error: BaseException) -> str:
    """What an error of Ray's says last, which is what was wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__


def _address() -> str:
    import ray.util  # here, because Ray takes seconds to load

    return str(ray.util.get_node_ip_address())


def actor_class() -> Any:
    import ray  # here, because Ray takes seconds to load

    return ray.remote(Actor)
