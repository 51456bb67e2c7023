"""The weights of consecutive units as two flat vectors, one of floats and one of integers.

A model's parameters and buffers are views into these vectors, in unit order. So loading a client, adding it to a
sum or counting its bytes is one operation on a slice, whatever the number of tensors: `state[0:cut]` is a head,
`state[cut:num_units]` a tail.

`Packed` puts many such states into two vectors, which cross a process border as two tensors. A tensor that crosses takes a
file descriptor in both processes, and clients that keep heads of their own are many.

The functions at the end are about the order in which a tensor's numbers lie in memory. Kernels follow this order, and with
them the last bits of what they compute, so the order travels with the numbers.
"""

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Generic, TypeVar

import torch
from safetensors import torch as safetensors
from torch import Tensor, nn

from hsfl.errors import InputError
from hsfl.models.units import SplitModel


@dataclass(frozen=True)
class Slot:
    """One tensor of a unit: its name in the whole model, its shape, and whether it lies among the floats."""

    name: str
    shape: torch.Size
    is_float: bool


@dataclass(frozen=True)
class Layout:
    """Where each unit's tensors lie in the two vectors."""

    units: tuple[tuple[Slot, ...], ...]
    float_starts: tuple[int, ...]  # [num_units + 1]
    int_starts: tuple[int, ...]  # [num_units + 1]

    @classmethod
    def of(cls, model: SplitModel) -> "Layout":
        floats = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        units = tuple(
            tuple(_slot(name, tensor, floats) for name, tensor in model.unit_state(unit).items())
            for unit in range(model.num_units)
        )
        return cls(units, _starts(units, is_float=True), _starts(units, is_float=False))

    @property
    def num_units(self) -> int:
        return len(self.units)

    def __reduce__(self) -> tuple[Callable[..., "Layout"], tuple[Any, ...]]:
        """How a layout crosses a process border, as every state and sum does with it: as plain tuples, from which each process
        makes one layout."""
        return _layout, (
            tuple(tuple((slot.name, tuple(slot.shape), slot.is_float) for slot in unit) for unit in self.units),
        )


@lru_cache(maxsize=16)
def _layout(units: tuple[tuple[tuple[str, tuple[int, ...], bool], ...], ...]) -> Layout:
    slots = tuple(tuple(Slot(name, torch.Size(shape), is_float) for name, shape, is_float in unit) for unit in units)
    return Layout(slots, _starts(slots, is_float=True), _starts(slots, is_float=False))


def _slot(name: str, tensor: Tensor, floats: torch.dtype) -> Slot:
    if tensor.dtype not in (floats, torch.int64):
        raise InputError(
            f"{name} is {tensor.dtype} but the model is {floats}; HSFL averages those and int64 counters: "
            "convert it, or register a buffer that need not travel with persistent=False"
        )
    return Slot(name, tensor.shape, tensor.is_floating_point())


def _starts(units: tuple[tuple[Slot, ...], ...], is_float: bool) -> tuple[int, ...]:
    sizes = (sum(slot.shape.numel() for slot in unit if slot.is_float == is_float) for unit in units)
    return tuple(accumulate(sizes, initial=0))


@dataclass(frozen=True)
class UnitState:
    """Parameters and buffers of units `[start, stop)`. Slicing by units gives a view, not a copy."""

    layout: Layout
    start: int
    stop: int
    floats: Tensor
    ints: Tensor

    @classmethod
    def empty(
        cls,
        layout: Layout,
        start: int = 0,
        stop: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> "UnitState":
        stop = layout.num_units if stop is None else stop
        num_floats = layout.float_starts[stop] - layout.float_starts[start]
        num_ints = layout.int_starts[stop] - layout.int_starts[start]
        floats = torch.zeros(num_floats, dtype=dtype, device=device)
        return cls(layout, start, stop, floats, torch.zeros(num_ints, dtype=torch.int64, device=device))

    def __getitem__(self, units: slice) -> "UnitState":
        start, stop = units.start, units.stop
        if (start, stop) == (self.start, self.stop):
            return self
        assert self.start <= start <= stop <= self.stop, f"units {start}:{stop} of {self.start}:{self.stop}"
        f, i = self.layout.float_starts, self.layout.int_starts
        floats = self.floats[f[start] - f[self.start] : f[stop] - f[self.start]]
        ints = self.ints[i[start] - i[self.start] : i[stop] - i[self.start]]
        return UnitState(self.layout, start, stop, floats, ints)

    def copy_(self, other: "UnitState") -> None:
        """Take over the values of another state of the same units."""
        assert (self.start, self.stop) == (other.start, other.stop)
        self.floats.copy_(other.floats)
        self.ints.copy_(other.ints)

    def clone(self) -> "UnitState":
        return UnitState(self.layout, self.start, self.stop, self.floats.clone(), self.ints.clone())

    @property
    def num_bytes(self) -> int:
        """Size on a link: every parameter and buffer at its own width."""
        return self.floats.nbytes + self.ints.nbytes

    def named(self) -> dict[str, Tensor]:
        """Views of the tensors, by name."""
        tensors: dict[str, Tensor] = {}
        filled = {True: 0, False: 0}
        for unit in self.layout.units[self.start : self.stop]:
            for slot in unit:
                begin, end = filled[slot.is_float], filled[slot.is_float] + slot.shape.numel()
                vector = self.floats if slot.is_float else self.ints
                tensors[slot.name] = vector[begin:end].view(slot.shape)
                filled[slot.is_float] = end
        return tensors


def joined_view(first: UnitState, second: UnitState) -> UnitState | None:
    """Both states as one view, where one lies right behind the other in memory; else None."""
    floats, ints = _joined_view(first.floats, second.floats), _joined_view(first.ints, second.ints)
    if first.stop != second.start or floats is None or ints is None:
        return None
    return UnitState(first.layout, first.start, second.stop, floats, ints)


def _joined_view(first: Tensor, second: Tensor) -> Tensor | None:
    if first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr():
        return None
    behind = first.storage_offset() + len(first) == second.storage_offset()
    return first.as_strided((len(first) + len(second),), (1,)) if behind else None


def read_state(model: SplitModel) -> UnitState:
    """A copy of the whole model's state."""
    first = next(model.parameters(), torch.zeros(0))
    state = UnitState.empty(Layout.of(model), dtype=first.dtype, device=first.device)
    tensors = model.state_dict()
    for name, view in state.named().items():
        view.copy_(tensors[name])
    return state


def load_state(state: UnitState, model: SplitModel) -> None:
    """Put a whole state into a model."""
    tensors = model.state_dict()
    for name, view in state.named().items():
        tensors[name].copy_(view)


def bind_state(state: UnitState, model: SplitModel) -> None:
    """Let the tensors of a model be views of a whole state, which takes no memory. Training the model would change the state."""
    _bind(model.units, model.prefixes, state.named())


def bound_copy(model: SplitModel, layout: Layout, start: int, stop: int) -> tuple[tuple[nn.Module, ...], UnitState]:
    """A copy of units `[start, stop)` whose tensors are views into the returned state.

    Writing to the state writes to the units, and training the units changes the state.
    """
    first = next(model.parameters(), torch.zeros(0))
    state = UnitState.empty(layout, start, stop, first.dtype, first.device)
    views = state.named()
    for unit in range(start, stop):
        for name, tensor in model.unit_state(unit).items():
            views[name].copy_(tensor.detach())
    units = tuple(copy.deepcopy(unit) for unit in model.units[start:stop])
    _bind(units, model.prefixes[start:stop], views)
    return units, state


def _bind(units: Sequence[nn.Module], prefixes: Sequence[str], views: Mapping[str, Tensor]) -> None:
    for unit, prefix in zip(units, prefixes):
        for name, module in unit.named_modules():
            _bind_module(module, prefix + (f"{name}." if name else ""), views)


def _bind_module(module: nn.Module, prefix: str, views: Mapping[str, Tensor]) -> None:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            parameter.data = views[prefix + name]
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            module._buffers[name] = views[prefix + name]


# --- many states in two vectors
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Packed(Generic[Key]):
    """States of units by key, one after another in two vectors."""

    floats: Tensor
    ints: Tensor
    places: tuple[tuple[Key, Layout, int, int], ...]  # key, layout, first unit, unit after the last

    @classmethod
    def of(cls, states: Mapping[Key, UnitState]) -> "Packed[Key]":
        """A copy of these states."""
        units = list(states.values())
        floats = torch.cat([state.floats for state in units]) if units else torch.zeros(0)
        ints = torch.cat([state.ints for state in units]) if units else torch.zeros(0, dtype=torch.int64)
        return cls(floats, ints, tuple((key, state.layout, state.start, state.stop) for key, state in states.items()))

    def states(self) -> dict[Key, UnitState]:
        """The states by key: views of the two vectors."""
        states: dict[Key, UnitState] = {}
        begin, begin_int = 0, 0
        for key, layout, start, stop in self.places:
            end = begin + layout.float_starts[stop] - layout.float_starts[start]
            end_int = begin_int + layout.int_starts[stop] - layout.int_starts[start]
            states[key] = UnitState(layout, start, stop, self.floats[begin:end], self.ints[begin_int:end_int])
            begin, begin_int = end, end_int
        return states


# --- named tensors
class TensorsByClient(dict[int, dict[str, Tensor]]):
    """Named tensors of each client. They cross a process border as bytes, since a tensor would take a file descriptor."""

    def __reduce__(self) -> tuple[Callable[..., "TensorsByClient"], tuple[bytes]]:
        return _tensors_by_client, (tensors_to_bytes(self.flat()),)

    @classmethod
    def named(cls, tensors: Mapping[str, Tensor]) -> "TensorsByClient":
        """From tensors that are called `client/name`."""
        by_client = cls()
        for key, tensor in tensors.items():
            client, _, name = key.partition("/")
            if not client.isdecimal():
                raise TypeError(f"{key} names no client")
            by_client.setdefault(int(client), {})[name] = tensor
        return by_client

    def flat(self) -> dict[str, Tensor]:
        """The tensors by `client/name`."""
        return {f"{client}/{name}": tensor for client, named in self.items() for name, tensor in named.items()}


def _tensors_by_client(content: bytes) -> TensorsByClient:
    return TensorsByClient.named(tensors_from_bytes(content))


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Named tensors as the content of a safetensors file."""
    content: bytes = safetensors.save(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    )
    return content


def tensors_from_bytes(content: bytes) -> dict[str, Tensor]:
    """What `tensors_to_bytes` was given."""
    tensors: dict[str, Tensor] = safetensors.load(content)
    return tensors


# --- the order of a tensor's numbers in memory
def usual_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The steps in memory of a tensor whose last dimension is the narrowest, its first the widest."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(size, 1))
    return tuple(strides[: len(shape)])


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor with these steps fills a stretch of memory, with every number once."""
    step = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1):
        if stride != step:
            return False
        step *= size
    return True


def dense(tensor: Tensor) -> Tensor:
    """The tensor itself if it fills a stretch of memory in any order of its dimensions, else a copy in the usual order."""
    return tensor if tensor.is_contiguous() or is_dense(tensor.shape, tensor.stride()) else tensor.contiguous()
