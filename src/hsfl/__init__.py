"""HSFL: unequal devices train one neural network together without sharing their data.

    import hsfl
    summary = hsfl.run(hsfl.read_config("demo"), "runs/demo")

Names are loaded when they are first used, so that what needs no torch imports none.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # so that editors and type checkers know the names
    from hsfl.allocation.policies import register_policy
    from hsfl.allocation.scenario import Scenario
    from hsfl.allocation.solvers import allocate
    from hsfl.config import RunConfig, read_config
    from hsfl.data.datasets import register_dataset
    from hsfl.errors import InputError
    from hsfl.methods import register_framework
    from hsfl.models.units import SplitModel, split
    from hsfl.models.zoo import register_model
    from hsfl.planning.plan import plan
    from hsfl.runs.loop import run

__version__ = version("hsfl")
__all__ = [
    "InputError",
    "RunConfig",
    "Scenario",
    "SplitModel",
    "allocate",
    "plan",
    "read_config",
    "register_dataset",
    "register_framework",
    "register_model",
    "register_policy",
    "run",
    "split",
]

_HOMES = {
    "Scenario": "hsfl.allocation.scenario",
    "allocate": "hsfl.allocation.solvers",
    "InputError": "hsfl.errors",
    "RunConfig": "hsfl.config",
    "read_config": "hsfl.config",
    "plan": "hsfl.planning.plan",
    "register_dataset": "hsfl.data.datasets",
    "register_framework": "hsfl.methods",
    "register_model": "hsfl.models.zoo",
    "register_policy": "hsfl.allocation.policies",
    "run": "hsfl.runs.loop",
    "split": "hsfl.models.units",
    "SplitModel": "hsfl.models.units",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hsfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
