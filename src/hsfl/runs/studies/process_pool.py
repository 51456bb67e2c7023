"""Independent pieces of work in several processes; each answer is given when its piece ends."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeVar

from hsfl import plugins
from hsfl.engines.machine import num_cores
from hsfl.errors import InputError

T = TypeVar("T")
R = TypeVar("R")


def worthwhile_workers(num_items: int) -> int:
    """How many workers are worth starting for short pieces of work. A process takes seconds to start, so each should
    have at least four pieces."""
    return max(1, min(num_cores(), num_items // 4))


def in_processes(function: Callable[[T], R], items: Sequence[T], num_workers: int | None = None) -> Iterator[R]:
    """The function's answers in the order in which they come. A single worker is this process; several have their own.

    When the caller stops (Ctrl-C, an error in another piece) or dies in any way, each worker gets SIGTERM: a run takes it as the
    order to save its state and end, other work ends at once.
    """
    num_workers = min(num_workers or num_cores(), len(items))
    if num_workers <= 1:
        yield from map(function, items)
        return
    fresh = get_context("spawn")  # torch's threads do not survive a fork
    lifeline, ours = fresh.Pipe(duplex=False)  # it breaks when this process closes it, or ends in any way
    with (
        ProcessPoolExecutor(num_workers, fresh, _begin_worker, (list(plugins.LOADED), lifeline)) as pool,
        ours,
        lifeline,
    ):
        futures = [pool.submit(_call, function, item) for item in items]
        whole = False
        try:
            yield from (future.result() for future in as_completed(futures))
            whole = True
        finally:
            if not whole:
                ours.close()
            pool.shutdown(wait=True, cancel_futures=True)


def _call(function: Callable[[T], R], item: T) -> R:
    """The function's answer. An error in a plugin is told in one line here, because a traceback does not cross the border."""
    try:
        return function(item)
    except (Exception, SystemExit) as error:
        if isinstance(error, InputError) or (error_sentence := plugins.explain_failure(error)) is None:
            raise
        raise InputError(error_sentence) from error


def _begin_worker(specs: list[str], lifeline: Connection) -> None:
    """Ctrl-C reaches all processes of a terminal, so workers leave it to the caller. The user's plugins are loaded in each
    worker from their files."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_when_closed, args=(lifeline,), daemon=True).start()
    plugins.load_plugins_of(specs)


def _end_when_closed(lifeline: Connection) -> None:
    lifeline.poll(None)  # nothing is ever sent: it returns when the other end is closed
    while True:  # a run takes the first signal as its order to stop; a worker that waits for work dies of it
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
