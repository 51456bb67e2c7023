"""Coded tensors in a message: the arrays of a payload are tensors of the message, called `name.array`, such as `smashed.values` and
`smashed.scales`.

Which codec is used follows from the run's settings, which both sides have; a message cannot choose another. What arrives is checked by the
codec before it is decoded (`training/codecs`), so that a payload asks for no memory that the shape does not need.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hsfl.deploy.wire.frames import WireError
from hsfl.training.aggregate import Diverged
from hsfl.training.codecs.codec import Codec, Draws, Payload, PayloadError


def pack_coded(
    name: str, tensor: Tensor, codec: Codec | None, direction: str, draws: Draws | None
) -> dict[str, Tensor]:
    """The tensors of a message that stand for a tensor. An empty tensor travels as it is; so does one with a number that is NaN or infinite,
    which the other side refuses with its reason."""
    if codec is None or not tensor.numel() or not tensor.is_floating_point():
        return {name: tensor}
    try:
        payload = codec.encode(tensor.detach(), direction, draws)
    except Diverged:
        return {name: tensor}
    return {f"{name}.{array}": content for array, content in payload.arrays.items()}


def unpack_coded(
    name: str, tensors: Mapping[str, Tensor], codec: Codec | None, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """The tensor that a message's tensors stand for. shape, dtype: as it must have them."""
    if codec is None or name in tensors:
        if name not in tensors:
            raise WireError("protocol", f"a message without {name}, which travel uncoded here")
        if codec is not None and tensors[name].is_floating_point() and tensors[name].numel():
            _refuse_uncoded(name, tensors[name])
        return tensors[name]
    arrays = {key.removeprefix(f"{name}."): array for key, array in tensors.items() if key.startswith(f"{name}.")}
    try:
        return codec.receive(Payload(arrays), shape, dtype)
    except PayloadError as error:
        raise WireError("codec", f"{name}: {error}") from None


def _refuse_uncoded(name: str, tensor: Tensor) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise WireError("not_finite", f"{name} with a number that is NaN or infinite; lower train.lr")
    raise WireError("codec", f"{name} of {tensor.nbytes} bytes uncoded, where the run's settings have a codec")


def is_coded_as(name: str, key: str) -> bool:
    """Whether a tensor of this key belongs to the tensor of this name."""
    return key == name or key.startswith(f"{name}.")


def coded_bytes(name: str, tensors: Mapping[str, Tensor]) -> int:
    """The bytes of what stands for a tensor."""
    return sum(tensor.nbytes for key, tensor in tensors.items() if is_coded_as(name, key))
