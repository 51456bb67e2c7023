"""Independent pieces of work in several processes, whose answers come as they end."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

from hsfl import plugins

T = TypeVar("T")
R = TypeVar("R")


def num_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_processes(function: Callable[[T], R], items: Sequence[T], num_workers: int | None = None) -> Iterator[R]:
    """The function's answers for all items, in the order in which they end. A single worker works in this process, several
    work in processes of their own."""
    num_workers = min(num_workers or num_cpus(), len(items))
    if num_workers <= 1:
        yield from map(function, items)
        return
    fresh = get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(num_workers, fresh, _begin, (list(plugins.LOADED),)) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            yield from (future.result() for future in as_completed(futures))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _begin(specs: list[str]) -> None:
    """Ctrl-C reaches all processes of a terminal; workers finish their piece and end with the pool. The user's plugins are
    loaded in each worker from their files."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    plugins.load_all(specs)
