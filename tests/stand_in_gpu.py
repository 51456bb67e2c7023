"""A device that stands in for a GPU: tensors lie on it, say so, and refuse to be mixed with tensors of the CPU; the CPU computes.

Torch lets Python register a device of one's own (PrivateUse1). A tensor here is a real one: it has a storage, views share it, autograd runs it. Its
numbers lie in the memory of the CPU, so that every operation is the CPU's own, to the bit, and what differs from a run on the CPU is a mistake in
the handling of devices. As on a GPU, a number alone (a tensor without dimensions) and indices may come from the CPU, and nothing else.

What it does not show: kernels of a GPU and their rounding, memory that runs out, work that is not done yet when a call returns, and operations that a
GPU's torch lacks or does not repeat to the bit.

Torch wants the device to be there before its first backward pass: call `settle` at the start of a process of its own.
"""

import ctypes
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration

NAME, KEY, DEVICE_TYPE = "standin", "PrivateUse1", 12  # DLPack calls a device of one's own type 12
MAY_MIX = {  # as on a GPU: copies between devices, and indices from the CPU
    "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize", "aten::index", "aten::index_put_", "aten::_index_put_impl_",
}  # fmt: skip
RENAMED: dict[
    str, Callable[..., Any]
] = {  # what torch calls on a device that it does not know, and the CPU's name for it
    "aten::convolution_overrideable": torch.ops.aten.convolution.default,
    "aten::convolution_backward_overrideable": lambda grad, x, weight, *rest: torch.ops.aten.convolution_backward(
        grad, x, weight, [weight.shape[0]], *rest
    ),
    "aten::_copy_from": lambda source, target, non_blocking=False: target.copy_(source),
    "aten::_copy_from_and_resize": lambda source, target: target.copy_(source),
}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _Numbers(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Array(ctypes.Structure):
    """DLTensor, of DLPack."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("num_axes", ctypes.c_int32),
        ("numbers", _Numbers),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor, of DLPack."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("array", _Array), ("context", ctypes.c_void_p), ("deleter", _Deleter))

CODES = {torch.bool: 6, torch.bfloat16: 4, torch.complex64: 5, torch.complex128: 5, torch.uint8: 1}
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

# By where a storage of the device begins: the tensors of the CPU whose memory it is.
MEMORY: dict[int, list[Tensor]] = {}
_ALIVE: dict[int, tuple[Any, ...]] = {}  # what a capsule points to, by its context
LIBRARIES: list[torch.library.Library] = []
count_operations = itertools.count()  # one for each operation of the device


def settle() -> torch.device:
    """Make the device known to torch; returns it."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    everything, convolutions = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    everything.fallback(_compute, KEY)
    for name in ("convolution_overrideable", "convolution_backward_overrideable"):
        convolutions.impl(name, _caller(getattr(torch.ops.aten, name).default), KEY)
    LIBRARIES.extend((everything, convolutions))  # which forget everything when they are deleted
    torch.Tensor.__deepcopy__ = _deepcopy  # type: ignore[method-assign]
    # Torch does so by itself, where it does not know how large the output of an operation will be.
    warnings.filterwarnings("ignore", "An output with one or more elements was resized")
    return torch.device(NAME, 0)


def _caller(operation: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: _compute(operation, *args, **kwargs)


def _deepcopy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """As torch's, which would ask the device for bare memory."""
    if id(tensor) not in memo:
        copy = tensor.detach().clone()
        if isinstance(tensor, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, tensor.requires_grad)
        memo[id(tensor)] = copy.requires_grad_(tensor.requires_grad) if copy.is_floating_point() else copy
    return memo[id(tensor)]


def _compute(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """An operation of the device: the CPU's, on the same memory."""
    name = operation._schema.name
    next(count_operations)
    _refuse_mixed(name, (*args, *kwargs.values()))
    twins: dict[
        int, tuple[Tensor, Tensor]
    ] = {}  # of the device's tensors, by the id of the CPU's tensor over the same memory

    def on_cpu(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type == NAME else value
        if isinstance(value, Tensor) and value.device.type == NAME:
            twin = _on_cpu(value)
            twins[id(twin)] = twin, value
            return twin
        return value

    def on_device(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in twins:
            return twins[id(value)][1]
        base = next((tensor for twin, tensor in twins.values() if _is_view(value, twin)), None)
        return _on_device(value) if base is None else _view(base, value)

    call = RENAMED.get(name, operation)
    result = call(*_mapped(on_cpu, args), **_mapped(on_cpu, kwargs))
    for twin, tensor in twins.values():
        if (
            twin.shape != tensor.shape
        ):  # an output that torch gives empty, for the operation to make it as large as it must be
            tensor.data = _on_device(twin)
    return _mapped(on_device, result)


def _refuse_mixed(name: str, given: Sequence[Any]) -> None:
    """Refuse what a GPU refuses. A number alone may come from the CPU, but not in a list of tensors."""
    alone = [value for value in given if isinstance(value, Tensor)]
    listed = [
        tensor for value in given if isinstance(value, (list, tuple)) for tensor in value if isinstance(tensor, Tensor)
    ]
    strangers = [tensor for tensor in alone if tensor.ndim] + listed
    if name not in MAY_MIX and any(tensor.device.type != NAME for tensor in strangers):
        shapes = [(tensor.device.type, tuple(tensor.shape)) for tensor in alone + listed]
        raise RuntimeError(f"{name} mixes devices: {shapes}")
    if name == "aten::index" and alone[0].device.type != NAME:
        raise RuntimeError("indices on a device into a tensor of the CPU")


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(change, part) for part in value)
    if isinstance(value, dict):
        return {key: _mapped(change, part) for key, part in value.items()}
    return change(value)


def _on_cpu(tensor: Tensor) -> Tensor:
    """The CPU's tensor over the same memory."""
    place = tensor.untyped_storage().data_ptr()
    if place == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    memory = MEMORY[place][-1].untyped_storage()
    offset = tensor.storage_offset() + (place - memory.data_ptr()) // tensor.itemsize
    return torch.empty(0, dtype=tensor.dtype).set_(memory, offset, tensor.shape, tensor.stride())


def _is_view(tensor: Tensor, base: Tensor) -> bool:
    """Whether a tensor of the CPU lies in the memory of another one."""
    place = base.untyped_storage().data_ptr()
    return place > 0 and tensor.untyped_storage().data_ptr() == place and tensor.dtype == base.dtype


def _view(base: Tensor, like: Tensor) -> Tensor:
    """The view of a tensor of the device that a tensor of the CPU is of the same memory."""
    before = base.untyped_storage().data_ptr() - like.untyped_storage().data_ptr()
    offset = like.storage_offset() - before // like.itemsize
    return torch.ops.aten.as_strided_(torch.ops.aten.alias(base), like.shape, like.stride(), offset)


def _on_device(tensor: Tensor) -> Tensor:
    """The device's tensor over the memory of a tensor of the CPU."""
    tensor = tensor.detach()
    code = CODES.get(tensor.dtype, 2 if tensor.is_floating_point() else 0)
    axes = ctypes.c_int64 * max(tensor.ndim, 1)
    shape, strides = axes(*tensor.shape), axes(*tensor.stride())
    array = _Array(
        tensor.data_ptr(), _Device(DEVICE_TYPE, 0), tensor.ndim, _Numbers(code, 8 * tensor.itemsize, 1), shape, strides, 0
    )  # fmt: skip
    managed = _Managed(array, None, _release)
    address = ctypes.addressof(managed)
    managed.context = address
    _ALIVE[address] = managed, shape, strides, tensor
    MEMORY.setdefault(tensor.data_ptr(), []).append(tensor)
    return torch.from_dlpack(_capsule(address, b"dltensor", None))


@_Deleter
def _release(pointer: Any) -> None:
    """Torch needs the memory no more."""
    *_, tensor = _ALIVE.pop(pointer.contents.context)
    held = MEMORY[tensor.data_ptr()]
    del held[next(place for place, other in enumerate(held) if other is tensor)]
    if not held:
        del MEMORY[tensor.data_ptr()]
