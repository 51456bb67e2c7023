"""The engine `workers`: processes on this machine, which share the data and the models in memory."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import get_temp_dir

import torch
import torch.multiprocessing as mp

from hsfl import plugins
from hsfl.config import RunConfig
from hsfl.engines.machine import num_cores, warn_of_cores
from hsfl.engines.worker import Answer, CarriedOut, Failed, Order, Setup, Worker
from hsfl.engines.worker_engine import Helper, WorkerEngine
from hsfl.errors import InputError
from hsfl.frameworks.copy_per_client import Shard
from hsfl.frameworks.framework import State
from hsfl.models.state import Packed, TensorsByClient, UnitState, tensors_from_bytes, tensors_to_bytes
from hsfl.training.aggregate import PartialSum, sum_memory
from hsfl.training.link import LinkBytes, Losses

END_S = 5.0  # within which a worker must have ended after it was told to


@dataclass(frozen=True)
class Shared:
    """The setup, the state that the run overwrites before each round, and the model that it overwrites before each
    test. All tensors lie in memory that processes share."""

    setup: Setup
    state: Packed[str]
    whole: UnitState


@dataclass(frozen=True)
class Taken:
    """The worker's first message: it has taken over what it shares with the run."""


@dataclass(frozen=True)
class ServerTensors:
    """What the servers remember before a round, for a framework whose clients look at it; a message that is not answered."""

    content: bytes  # of a safetensors file


@dataclass(frozen=True)
class Handed:
    """A shard without the numbers of its sum, which lie in memory that the worker shares with the run."""

    start: int  # units of the sum
    stop: int
    weight: list[float]
    bits: tuple[int, ...]
    largest: tuple[float, ...]
    heads: Packed[int]
    losses: Losses
    bytes: LinkBytes
    memory: TensorsByClient
    sent: TensorsByClient
    updates: Packed[int]

    @classmethod
    def of(cls, shard: Shard) -> "Handed":
        total = shard.total
        return cls(
            total.total.start, total.total.stop, total.weight.tolist(), total.bits, total.largest, Packed.of(shard.heads),
            shard.losses, shard.bytes, shard.memory, shard.sent, Packed.of(shard.updates),
        )  # fmt: skip

    def shard(self, memory: UnitState) -> Shard:
        """The shard again. memory: in which the worker counted."""
        weight = torch.tensor(self.weight, dtype=torch.float64)
        total = PartialSum(memory[self.start : self.stop], weight, self.bits, self.largest)
        heads, updates = self.heads.states(), self.updates.states()
        return Shard(total, heads, self.losses, self.bytes, self.memory, self.sent, updates)


def _lies_in(memory: UnitState, shard: Shard) -> bool:
    """Whether the shard's sum lies in this memory; a second shard of one round does not."""
    memory_address, sum_address = (
        floats.untyped_storage().data_ptr() for floats in (memory.floats, shard.total.total.floats)
    )
    return memory_address == sum_address


def _worker_life(pipe: Connection, specs: list[str], num_threads: int) -> None:
    """The life of a worker process. Ctrl-C is the run's business; the worker ends when the run is gone."""
    for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(num_threads)
    try:
        plugins.load_plugins_of(specs)
        shared, memory = pipe.recv()
        pipe.send(Taken())
        worker = Worker(shared.setup, pipe.send, memory)
        worker.state, worker.whole = State(shared.state.states()), shared.whole
        while (order := pipe.recv()) is not None:
            if isinstance(order, ServerTensors):
                worker.state = replace(worker.state, tensors=tensors_from_bytes(order.content))
                continue
            answer = worker.carry_out(order)
            pipe.send(Handed.of(answer.shard) if answer.shard and _lies_in(memory, answer.shard) else answer)
    except (EOFError, ConnectionError):
        pass  # the run is gone
    except (Exception, SystemExit) as error:
        pipe.send(Failed.by(_shared_memory_error(error) or error))


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """A process that is started here never hears of Ctrl-C, not even while it imports; this process hears of it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # lets signals through again where it has to be started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _shared_memory_error(error: BaseException) -> InputError | None:
    """The error to show instead of torch's error where shared memory is short (containers often have 64 MB); None where
    something else is wrong."""
    if "shared memory" not in str(error) and "torch_shm" not in str(error):
        return None
    return InputError(
        "workers share data and models in /dev/shm, which is full; give it more room (docker run --shm-size=4g), lower "
        "engine.workers, or set engine.name=inline"
    )


def _share_memory(*tensors: torch.Tensor) -> None:
    """Put tensors into memory that processes share."""
    try:
        for tensor in tensors:
            tensor.share_memory_()
    except RuntimeError as error:
        raise _shared_memory_error(error) or error from None


@dataclass(kw_only=True)
class Process(Helper):
    """One worker process."""

    process: BaseProcess
    pipe: Connection
    memory: UnitState | None = None  # in which the worker counts, shared with it
    taken: bool = False  # whether the worker has taken over what it shares with the run
    has: ServerTensors | None = None  # what the worker was given last


class Workers(WorkerEngine[Process]):
    """Worker processes, which start while the run still reads its data."""

    advice = 'if memory is short, lower engine.workers; in a script of your own, call hsfl.run under `if __name__ == "__main__":`'

    def __init__(self, num_workers: int, num_threads: int, say: Callable[[str], None]) -> None:
        self.num_threads, self.say = num_threads, say
        self.shared: Shared | None = None
        self.given: ServerTensors | None = None
        self.num_here = num_workers
        self.helpers = [self._spawn() for _ in range(num_workers)]

    @classmethod
    def start(cls, config: RunConfig, say: Callable[[str], None]) -> "Workers":
        """As many workers as the config says, else one for each core, and never more than a round has clients. Unless
        the config gives the threads of a worker, the workers divide the cores among themselves, and none has more threads
        than this process."""
        cores = num_cores()
        most = config.train.clients_per_round or config.fleet.num_clients
        asked = config.engine.workers or min(cores, most)
        if asked > most:
            say(f"engine.workers is {asked} but a round has {most} clients; {most} workers are started")
        num_workers = min(asked, most)
        threads = config.engine.threads or max(1, min(torch.get_num_threads(), cores // num_workers))
        warn_of_cores(num_workers, threads, cores, say)
        return cls(num_workers, threads, say)

    def _spawn(self) -> Process:
        context = mp.get_context("spawn")  # a fork would copy the locks of torch's threads, whoever holds them
        get_temp_dir()  # a worker that starts afterwards uses this folder, which is removed with the run, even if the worker is killed
        pipe, worker_pipe = context.Pipe()
        process = context.Process(
            target=_worker_life, args=(worker_pipe, list(plugins.LOADED), self.num_threads), daemon=True
        )
        with _ctrl_c_held_back():
            process.start()
        worker_pipe.close()
        return Process(where=f"process {process.pid}", process=process, pipe=pipe)

    def _give_setup(self, setup: Setup) -> None:
        state, whole = Packed.of(self.framework.init().units), setup.task.initial.clone()
        images = (setup.task.feed.images.x, setup.task.feed.images.y, setup.test.x, setup.test.y)
        _share_memory(*images, state.floats, state.ints, whole.floats, whole.ints)
        self.shared, self.state = Shared(setup, state, whole), state.states()
        for helper in self.helpers:
            self._send_shared(helper)

    def _send_shared(self, helper: Process) -> None:
        """Send a worker what it shares with the run, and memory for its sums, which is new: the run may still need a sum of the worker
        before it."""
        assert self.shared is not None
        helper.memory = sum_memory(self.shared.whole, 0, self.shared.whole.stop)
        _share_memory(helper.memory.floats, helper.memory.ints)
        try:
            helper.pipe.send((self.shared, helper.memory))
        except ConnectionError:
            pass  # noticed where answers are awaited
        except (AttributeError, TypeError, ValueError) as error:  # how pickle refuses a class made inside a function
            raise InputError(f"the model cannot be sent to workers ({error}); define it at the top of a file") from None

    def _give_state(self, state: State) -> None:
        assert self.shared is not None
        for name, units in state.units.items():
            self.state[name].copy_(units)
        looked_at = self.framework.hooks_clients and state.tensors
        self.given = ServerTensors(tensors_to_bytes(state.tensors)) if looked_at else None

    def _give_whole(self, whole: UnitState) -> None:
        assert self.shared is not None
        self.shared.whole.copy_(whole)

    def _order(self, helper: Process, order: Order) -> None:
        with suppress(ConnectionError):
            if self.given is not None and self.given is not helper.has:
                helper.pipe.send(self.given)
                helper.has = self.given
            helper.pipe.send(order)

    def _answers(self, busy: Sequence[Process]) -> Iterator[tuple[Process, Answer | None]]:
        by_pipe = {helper.pipe: helper for helper in busy}
        for pipe in wait(list(by_pipe)):
            assert isinstance(pipe, Connection)
            helper = by_pipe[pipe]
            try:
                answer: Answer | Handed | Taken = helper.pipe.recv()
            except (EOFError, OSError):
                yield helper, None
                continue
            if isinstance(answer, Taken):
                helper.taken, helper.since_s = True, time.monotonic()  # what it took to start says nothing of its pace
                continue
            if isinstance(answer, Handed):
                assert helper.memory is not None
                answer = CarriedOut(answer.shard(helper.memory))
            yield helper, answer

    def _cause_of_death(self, dead: Process) -> str:
        dead.process.join(END_S)
        code = dead.process.exitcode
        return f"exit code {code}" + (", killed, perhaps for want of memory" if code == -signal.SIGKILL else "")

    def _replace(self, dead: Process) -> Process:
        dead.pipe.close()
        new = self._spawn()
        self._send_shared(new)
        return new

    def close(self) -> None:
        """End all workers, whatever they are doing; but a worker that is just taking over shared memory ends after that, since the
        thread of this process that hands it over would complain."""
        until_s = time.monotonic() + END_S
        for helper in self.helpers:
            if helper.memory is not None and not helper.taken:
                with suppress(OSError):  # the pipe of a worker that could not be replaced is closed
                    helper.pipe.poll(max(0.0, until_s - time.monotonic()))  # until its first message, or its death
        processes = [helper.process for helper in self.helpers]
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(END_S)
            if process.is_alive():
                process.kill()
                process.join()
        for helper in self.helpers:
            helper.pipe.close()
