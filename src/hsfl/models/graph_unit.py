"""A unit that is a stretch of a module's graph: plain code over the module's own tensors, once for training and once for evaluation."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor, nn

Function = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Code:
    """The forward pass of a unit in one mode, as text, so that a unit can be sent to another process."""

    source: str
    names: tuple[tuple[str, str, str], ...]  # what the text calls it, its module, its name there


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
    """A unit whose tensors have the names that they have in the module. `plant` gives it its tensors."""

    def __init__(self, training: Code, evaluation: Code, draws_numbers: bool) -> None:
        super().__init__()
        self._codes = (evaluation, training)
        self._draws = draws_numbers
        self.held: dict[
            str, str
        ] = {}  # attribute -> name of a tensor of the state that another unit has and nobody trains
        self._compile()

    def _compile(self) -> None:
        self._functions = tuple(map(compiled, self._codes))

    @property
    def draws(self) -> bool:
        """Whether the unit draws random numbers in training."""
        return self._draws

    def forward(self, x: Tensor) -> Tensor:
        return self._functions[self.training](self, x)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_functions"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._compile()


def plant(root: nn.Module, name: str, tensor: Tensor, persistent: bool = True) -> None:
    """Give a tensor its dotted name under a module. Put past `add_module`, which would refuse a part called `head` in a
    class that has a method of this name."""
    *path, leaf = name.split(".")
    for part in path:
        root = root._modules.setdefault(part, nn.Module())  # type: ignore[assignment]
    if isinstance(tensor, nn.Parameter):
        root._parameters[leaf] = tensor
    else:
        root._buffers[leaf] = tensor
        if not persistent:
            root._non_persistent_buffers_set.add(leaf)
