"""How many cores this process may use, and the memory that it keeps."""

import os
from collections.abc import Callable


def num_cores() -> int:
    """The cores that this process may run on, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Let this process keep the memory of each batch for the next batch.

    glibc gives freed memory back to the system, and takes it anew page by page, unless the process has freed a large piece before: the
    largest piece so far, up to 32 MB, decides. A process that reads its data has freed such pieces; a worker has not.
    """
    bytearray(31 << 20)


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
