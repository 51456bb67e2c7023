"""The published algorithms: each has a class, whose `round` turns the state before a round into the state after it.

`framework` says what a framework is; `copy_per_client` has HSFL, SplitFed V1 and FSL, with `hooks` for methods that derive from them and a `guard` before the average; `in_step`
has SplitFed V2, the other files are named after their algorithms. Names, papers and cuts of all of them are rows of `hsfl.framework_table`. One step is computed in `hsfl.training`, and who
trains which client is decided in `hsfl.engines`.
"""

from importlib import import_module

from hsfl.framework_table import method
from hsfl.frameworks.framework import Framework


def find_framework(name: str) -> type[Framework]:
    """The class of the framework `name`."""
    code = method(name).code
    if not isinstance(code, str):
        return code
    module, _, attribute = code.partition(":")
    framework_class: type[Framework] = getattr(import_module(module), attribute)
    return framework_class


OFFERED = {  # to other folders, by module
    "copy_per_client": ("CopyPerClient", "HSFL", "Shard"),
    "framework": (
        "checked_round",
        "Framework",
        "FrameworkBase",
        "join",
        "RoundResult",
        "State",
        "Task",
        "whole_models",
    ),
    "hooks": ("overridden_hooks",),
}
