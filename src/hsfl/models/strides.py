"""The order in which a tensor's numbers lie in memory. Kernels follow it, and with them the last bits of what they compute, so it travels
with the numbers."""

from collections.abc import Sequence

from torch import Tensor


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
