"""A SplitModel that was cut out of a module, and how that was asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hsfl.errors import InputError
from hsfl.models.split.codegen import GraphUnit, Message, pack_pieces, plant
from hsfl.models.units import SplitModel, norm_rates


@dataclass(frozen=True)
class SplitRequest:
    """What a caller of `hsfl.split` asks for."""

    inputs: Sequence[Tensor]  # the example batch
    names: tuple[str, ...] = ()  # of the inputs, where they are given by name
    at: tuple[str, ...] = ()  # parts of the module behind which to cut; empty: wherever the graph allows
    most_tensors: int = 1  # that may cross a cut together
    output: str | int | None = None  # which of several outputs is the model's


SplitAgain = Callable[[nn.Module], SplitModel]


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by their names; the module's own tensors, no copies."""
    return {name: t for name, t in module.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}


class ModuleSplit(SplitModel):
    """A module cut by its graph. Its tensors are the module's own, by the module's own names.

    A sample that is made of several tensors is packed into one vector: `pack(tokens, mask)`.
    """

    def __init__(
        self,
        module: nn.Module,
        units: Mapping[str, nn.Module],
        message: Message,
        split_again: SplitAgain,
        request: SplitRequest,
    ) -> None:
        """message: what the first unit takes. split_again: splits another module in the same way."""
        super().__init__(units, dict.fromkeys(units, ""))
        self._split_again = split_again
        self._origin: tuple[nn.Module, ...] = (module,)  # in a tuple, so that torch does not take the module for a part
        self._request: tuple[SplitRequest, ...] = (
            request,
        )  # with tensors of the example, which are no part of the model
        self.message, self.names = message, request.names
        self._norm_rates = norm_rates(module)
        self.input_dtype = None if message.dtype.is_floating_point else message.dtype
        for name, tensor in state_of(module).items():
            plant(self, name, tensor)
        self.train(module.training)

    @property
    def is_copy(self) -> bool:
        """Whether the model is a copy, which knows neither the module that was split nor how that was asked for."""
        return not self._origin

    @property
    def origin(self) -> nn.Module:
        """The module that was split."""
        return self._origin[0]

    @property
    def request(self) -> SplitRequest:
        """How the module was split."""
        return self._request[0]

    @property
    def norm_rates(self) -> list[float]:
        return list(self._norm_rates)

    def _register(self, unit: nn.Module, prefix: str) -> None:
        """Units stand beside the tree of names, since two units may have tensors under one part of the module."""

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        return super().forward(inputs[0] if len(inputs) == 1 and not named else self.pack(*inputs, **named))

    def pack(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """The module's inputs packed into one tensor, which the first unit takes; a single input stays as it is. Give
        the tensors in the order of the example, or by the names that they had there."""
        named_later = self.names[len(inputs) :]
        if named and set(named) != set(named_later):
            raise InputError(f"the model takes {', '.join(self.names) or 'tensors in order'}, not {', '.join(named)}")
        inputs = (*inputs, *(named[name] for name in named_later if named))
        if len(inputs) != len(self.message.pieces):
            raise InputError(f"the model takes {len(self.message.pieces)} tensors, not {len(inputs)}")
        return inputs[0] if self.message.is_plain else pack_pieces(inputs, self.message.pieces, self.message.dtype)

    def whole(self) -> nn.Module:
        """The module that was split. Where the model is a copy, which does not know the module, or the module takes
        several tensors, this is the model itself, which runs its units one after another."""
        return self if self.is_copy or not self.message.is_plain else self.origin

    def changed(self, change: Callable[[nn.Module], nn.Module]) -> SplitModel:
        """The module after a change to its layers, split anew."""
        if not self._origin or self._split_again is None:
            raise InputError("the model is a copy of a split module; change the module's layers before it is split")
        return self._split_again(change(self._origin[0]))

    def train(self, mode: bool = True) -> "ModuleSplit":
        for unit in self.units:
            unit.train(mode)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ModuleSplit":
        """Move or convert all tensors; the units take theirs from the tree of names again."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for unit in self.units:
            unit._apply(fn)
        named = self.state_dict(keep_vars=True)
        for unit in self.units:
            for name in unit.state_dict():
                plant(unit, name, named[name])
            for attribute, name in _held(unit).items():
                plant(unit, attribute, named[name].detach(), persistent=False)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or what another process gets, has the units and no longer the module, whose class may be known here alone."""
        return self.__dict__ | {"_split_again": None, "_origin": (), "_request": ()}


def _held(unit: nn.Module) -> dict[str, str]:
    return GraphUnit.held(unit) if isinstance(unit, GraphUnit) else {}
