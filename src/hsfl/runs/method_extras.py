"""What a method sends and trains besides HSFL's round (its `extra_bytes` and `passes`), for those who choose cuts.

The framework is asked with the deepest cuts, before its own are chosen, since `extra_bytes` answers for every cut. Torch is loaded
only where a framework of the user's has such hooks.
"""

from typing import TYPE_CHECKING

from hsfl.framework_table import method
from hsfl.planning.rounds.round_clock import Extras

if TYPE_CHECKING:
    from hsfl.frameworks.framework import Task

CHARGED = {"extra_bytes", "passes"}


def charged_hooks(framework: str) -> set[str]:
    """The hooks of a framework that the clock charges, by name; none of a framework that is built in."""
    if method(framework).built_in:
        return set()
    from hsfl.frameworks import find_framework
    from hsfl.frameworks.hooks import overridden_hooks  # here, because it loads torch

    return CHARGED & {*overridden_hooks(find_framework(framework))}


def method_extras(task: "Task") -> Extras:
    """What the framework of a task sends and trains besides, whatever the cuts of the task are."""
    if not charged_hooks(task.config.framework):
        return Extras()
    from hsfl.frameworks import find_framework

    extras = find_framework(task.config.framework)(task).extras()
    return Extras(up_bits=extras.up_bits, down_bits=extras.down_bits, passes=extras.passes)
