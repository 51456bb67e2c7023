"""How many cores this process may use."""

import os


def num_cores() -> int:
    """The cores that this process may run on, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
