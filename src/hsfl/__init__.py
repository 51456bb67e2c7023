"""HSFL: unequal devices train one neural network together without sharing their data.

    import hsfl
    result = hsfl.run("demo", "runs/demo", progress=True)
    hsfl.open("runs/demo").plot()

Programs and plugins take every name from here and need not know in which folder it lives (`docs/extend.md` shows plugins).
Names are loaded when they are first used, so that what needs no torch imports none. Errors of functions that are taken from here speak
of arguments (`out=`), where a command speaks of options (`--out`).
"""

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hsfl.errors import speaks_of_arguments

if TYPE_CHECKING:  # so that editors and type checkers know the names
    from hsfl.allocation.policies import register_policy
    from hsfl.allocation.policy_table import POLICY_RULES
    from hsfl.allocation.scenario import Scenario
    from hsfl.allocation.solvers import allocate
    from hsfl.api.folder_calls import open_folder as open
    from hsfl.api.model_calls import cost
    from hsfl.api.plan_calls import plan
    from hsfl.api.prediction_calls import plan_check
    from hsfl.api.run_calls import compare, evaluate, run
    from hsfl.api.sweep_calls import sweep
    from hsfl.codec_table import register_codec
    from hsfl.config import RunConfig, read_config
    from hsfl.data.from_python import dataset
    from hsfl.data.registry import register_dataset
    from hsfl.errors import InputError
    from hsfl.framework_table import Timing, register_framework
    from hsfl.frameworks.copy_per_client import HSFL
    from hsfl.frameworks.framework import FrameworkBase, RoundResult, State
    from hsfl.models.split.graph_split import split
    from hsfl.models.units import SplitModel
    from hsfl.models.zoo import register_model
    from hsfl.network.clock import timeline
    from hsfl.report.page.page import write_report as report
    from hsfl.runs.progress import Observer
    from hsfl.tasks import register_task
    from hsfl.training.codecs.codec import Codec, Payload, PayloadError

    __version__: str

__all__ = [
    "HSFL",
    "POLICY_RULES",
    "Codec",
    "FrameworkBase",
    "InputError",
    "Observer",
    "Payload",
    "PayloadError",
    "RoundResult",
    "RunConfig",
    "Scenario",
    "SplitModel",
    "State",
    "Timing",
    "allocate",
    "compare",
    "cost",
    "dataset",
    "evaluate",
    "open",
    "plan",
    "plan_check",
    "read_config",
    "register_codec",
    "register_dataset",
    "register_framework",
    "register_model",
    "register_policy",
    "register_task",
    "report",
    "run",
    "split",
    "sweep",
    "timeline",
]

_HOMES = {  # the module of each name; "module:name" where the module calls it otherwise
    "Codec": "hsfl.training.codecs.codec",
    "FrameworkBase": "hsfl.frameworks.framework",
    "HSFL": "hsfl.frameworks.copy_per_client",
    "InputError": "hsfl.errors",
    "Observer": "hsfl.runs.progress",
    "POLICY_RULES": "hsfl.allocation.policy_table",
    "Payload": "hsfl.training.codecs.codec",
    "PayloadError": "hsfl.training.codecs.codec",
    "RoundResult": "hsfl.frameworks.framework",
    "RunConfig": "hsfl.config",
    "Scenario": "hsfl.allocation.scenario",
    "SplitModel": "hsfl.models.units",
    "State": "hsfl.frameworks.framework",
    "Timing": "hsfl.framework_table",
    "allocate": "hsfl.allocation.solvers",
    "compare": "hsfl.api.run_calls",
    "cost": "hsfl.api.model_calls",
    "dataset": "hsfl.data.from_python",
    "evaluate": "hsfl.api.run_calls",
    "open": "hsfl.api.folder_calls:open_folder",
    "plan": "hsfl.api.plan_calls",
    "plan_check": "hsfl.api.prediction_calls",
    "read_config": "hsfl.config",
    "register_codec": "hsfl.codec_table",
    "register_dataset": "hsfl.data.registry",
    "register_framework": "hsfl.framework_table",
    "register_model": "hsfl.models.zoo",
    "register_policy": "hsfl.allocation.policies",
    "register_task": "hsfl.tasks",
    "report": "hsfl.report.page.page:write_report",
    "run": "hsfl.api.run_calls",
    "split": "hsfl.models.split.graph_split",
    "sweep": "hsfl.api.sweep_calls",
    "timeline": "hsfl.network.clock",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, _, name_there = _HOMES[name].partition(":")
        thing = getattr(import_module(module), name_there or name)
        if isinstance(thing, FunctionType):
            thing = speaks_of_arguments(thing)
            thing.__module__, thing.__qualname__ = __name__, name  # where pickle finds it, for other processes
        return globals().setdefault(name, thing)  # `hsfl.report` is a folder by now; it is called in the same way
    if name == "__version__":
        from importlib.metadata import version  # here, because it takes as long to load as all commands

        return version("hsfl")
    raise AttributeError(f"module 'hsfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
