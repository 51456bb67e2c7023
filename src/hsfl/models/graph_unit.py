"""A unit that is a stretch of a module's graph: plain code over the module's own tensors, once for training and once for evaluation."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor, nn

Function = Callable[[None, nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Code:
    """The forward pass of a unit in one mode, as text, so that a unit can be sent to another process."""

    source: str
    names: tuple[tuple[str, str, str], ...]  # for each name in the text: the name, its module, its name there


@cache
def compiled(code: Code) -> Function:
    """The function that the text defines."""
    space: dict[str, Any] = {"inf": float("inf"), "nan": float("nan"), "NoneType": type(None)}
    for name, module, inner in code.names:
        found: Any = import_module(module)
        for word in inner.split(".") if inner else ():
            found = getattr(found, word)
        space[name] = found
    exec(compile(code.source, "<unit of a split module>", "exec"), space)
    return space["forward"]


class GraphUnit(nn.Module):
    """A unit whose tensors have the names that they have in the module. `plant` gives it its tensors.

    The unit's own attributes have two underscores, since a part of the module may be called anything.
    """

    def __init__(self, training: Code, evaluation: Code, draws_numbers: bool) -> None:
        super().__init__()
        self.__codes = (evaluation, training)
        self.__draws = draws_numbers
        self.__held: dict[str, str] = {}
        self.__compile()

    def __compile(self) -> None:
        self.__functions = tuple(map(compiled, self.__codes))
        self.__parts: dict[str, tuple[nn.Module, str]] = {}

    def forward(self, x: Tensor) -> Tensor:
        return self.__functions[self.training](None, self, x)

    @staticmethod
    def draws(unit: "GraphUnit") -> bool:
        """Whether a unit draws random numbers in training."""
        return unit.__draws

    @staticmethod
    def held(unit: "GraphUnit") -> dict[str, str]:
        """Attribute -> name of a tensor of the state that another unit has and nobody trains."""
        return unit.__held

    @staticmethod
    def parts(unit: "GraphUnit") -> dict[str, tuple[nn.Module, str]]:
        """By name of a tensor: the part of the unit that has it, and its name there; filled as tensors are asked for."""
        return unit.__parts

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in MADE_AGAIN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.__compile()


MADE_AGAIN = ("_GraphUnit__functions", "_GraphUnit__parts")  # attributes that a copy makes anew


def tensor_of(unit: GraphUnit, name: str) -> Tensor:
    """The tensor of a unit by its dotted name. Words are looked up among parts and tensors alone, since they may be
    anything."""
    parts = GraphUnit.parts(unit)
    if name not in parts:
        *path, leaf = name.split(".")
        part: nn.Module = unit
        for word in path:
            part = part._modules[word]  # type: ignore[assignment]
        parts[name] = part, leaf
    part, leaf = parts[name]
    return part._parameters[leaf] if leaf in part._parameters else part._buffers[leaf]  # type: ignore[return-value]


def plant(root: nn.Module, name: str, tensor: Tensor, persistent: bool = True) -> None:
    """Put a tensor under a module by its dotted name. This goes past `add_module`, which would refuse a part called
    `head` in a class that has a method of this name. persistent: whether a buffer is part of the state dict."""
    *path, leaf = name.split(".")
    for part in path:
        root = root._modules.setdefault(part, nn.Module())  # type: ignore[assignment]
    if isinstance(tensor, nn.Parameter):
        root._parameters[leaf] = tensor
    else:
        root._buffers[leaf] = tensor
        if not persistent:
            root._non_persistent_buffers_set.add(leaf)
