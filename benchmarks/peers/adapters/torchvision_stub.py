"""Empty modules in the place of torchvision, whose build for the CPU does not import beside the installed torch.

Peers import it for models and data sets that are not used here.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SUBMODULES = ("datasets", "datasets.utils", "datasets.folder", "models", "transforms", "transforms.functional", "utils")


class Stub(ModuleType):
    """A module in which every name is an empty class."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = list[str]()
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def stub_torchvision() -> None:
    """Replace torchvision where it does not import."""
    try:
        import torchvision  # noqa: F401
    except Exception:  # a RuntimeError, where its operators do not fit torch
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("torchvision", *(f"torchvision.{submodule}" for submodule in SUBMODULES)):
            sys.modules[name] = Stub(name)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, sys.modules[name])
