"""HSFL: unequal devices train one neural network together without sharing their data.

    import hsfl
    summary = hsfl.run(hsfl.read_config("demo"), "runs/demo")

Names are loaded when they are first used, so that what needs no torch imports none.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

__version__ = version("hsfl")

_HOMES = {
    "Scenario": "hsfl.allocation.scenario",
    "allocate": "hsfl.allocation.solvers",
    "InputError": "hsfl.errors",
    "RunConfig": "hsfl.config",
    "read_config": "hsfl.config",
    "plan": "hsfl.planning.plan",
    "run": "hsfl.runs.loop",
    "split": "hsfl.models.units",
    "SplitModel": "hsfl.models.units",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hsfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
