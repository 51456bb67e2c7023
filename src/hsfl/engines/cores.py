"""How many cores this process may use."""

import os
from collections.abc import Callable


def num_cores() -> int:
    """The cores that this process may run on, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warn_of_cores(num_workers: int, num_threads: int, cores: int, say: Callable[[str], None]) -> None:
    """Warn if all workers together have more threads than there are cores: threads that wait for each other are slower
    than one.

    num_threads: of each worker. say: is told the warning.
    """
    if num_workers * num_threads > cores:
        threads = f" and engine.threads {num_threads}" if num_threads > 1 else ""
        say(
            f"engine.workers is {num_workers}{threads} but this machine has {cores} cores; the workers wait for each other"
        )
