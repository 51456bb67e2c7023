"""Checks before a run: does a user's model take these samples, and does it give as many numbers as the targets need?"""

import copy

import torch
from torch import Tensor, nn

from hsfl.errors import InputError
from hsfl.models.split.module_split import ModuleSplit
from hsfl.models.units import SplitModel

TARGET_NAMES = {"classes": "classes", "labels": "labels", "numbers": "columns of targets"}


def example(shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """A batch of one sample of this shape, all zeros. dtype: int64 for tokens; None is floats."""
    return torch.zeros(1, *shape, dtype=dtype)


def check_fits(
    model: nn.Module,
    samples: Tensor,
    num_classes: int,
    targets: str = "classes",
    pixel_shape: tuple[int, ...] | None = None,
) -> None:
    """Try a copy of the model, in evaluation mode, on samples [n, ...]; what the model raises becomes an error of one line.

    num_classes: how many numbers the model must give for a sample (or token, or pixel). targets: what these numbers stand for:
        classes, labels, numbers, tokens or pixels (`hsfl.tasks`). pixel_shape: of a sample's targets, where each pixel has a class;
        None where the targets are not known.
    """
    if not any(True for _ in model.parameters()):
        raise InputError("the model has no parameters, so there is nothing to train; give it a layer with weights")
    check_example(model, samples)
    output, units = samples, copy.deepcopy(model).eval()
    for name, unit in zip(units.unit_names, units.units) if isinstance(units, SplitModel) else [("", units)]:
        before = tuple(getattr(output, "shape", ()))[1:]
        try:
            with torch.no_grad():
                output = unit(output)
        except Exception as error:  # a user's model may raise anything
            place_note = f"; unit {name} gets {before}" if before != tuple(samples.shape[1:]) else ""
            raise InputError(
                f"the model does not take samples of {tuple(samples.shape[1:])}{place_note}: {_reason(model, samples, error)}; change "
                f"{f'unit {name}' if name else 'it'}"
            ) from None
    shape = tuple(getattr(output, "shape", ()))
    if targets == "tokens":
        _check_tokens(shape[1:], tuple(samples.shape[1:]), num_classes)
        return
    if targets == "pixels":
        _check_pixels(shape[1:], num_classes, pixel_shape)
        return
    if len(shape) == 1 and num_classes == 1:
        raise InputError(
            "the model gives [batch] where [batch, 1] is expected, a column of targets; leave out the squeeze at its end"
        )
    if len(shape) != 2 or shape[1] != num_classes:
        raise InputError(
            f"the model gives {shape[1:]} numbers for a sample, but there are {num_classes} {TARGET_NAMES[targets]}; change its last unit"
        )


def check_weights(model: nn.Module) -> None:
    """Refuse a model that was made on the meta device, where tensors have no numbers."""
    if empty := [name for name, tensor in model.state_dict().items() if tensor.is_meta]:
        raise InputError(
            f"{empty[0]} of the model is on the meta device, so that it has no numbers; make the model on the CPU"
        )


def check_example(model: nn.Module, samples: Tensor) -> None:
    """Refuse samples whose shape is not that of the example by which a module was split."""
    if not isinstance(model, ModuleSplit) or tuple(samples.shape[1:]) == model.message.shape:
        return
    if not model.message.is_plain:
        names = ", ".join(model.names) or ", ".join("xyzuvw"[: len(model.message.pieces)])
        raise InputError(
            f"the model takes {len(model.message.pieces)} tensors for a sample, packed into {model.message.shape[0]} numbers, but the "
            f"data have samples of {tuple(samples.shape[1:])}; give hsfl.dataset(model.pack({names}), targets)"
        )
    raise InputError(
        f"the model was split for samples of {model.message.shape} but the data have samples of {tuple(samples.shape[1:])}; split "
        "it with an example of the data's shape"
    )


def _reason(model: nn.Module, samples: Tensor, error: Exception) -> str:
    """What a model raised, in one line; for common mistakes, their cause instead."""
    floats = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if samples.is_floating_point() and samples.dtype not in floats and isinstance(error, RuntimeError):
        kinds = [str(dtype).removeprefix("torch.") for dtype in (*floats, samples.dtype)]
        return f"its weights are {kinds[0]} and samples are {kinds[-1]}, so call .float() on the module"
    if isinstance(error, IndexError) and not samples.is_floating_point():
        return f"the text has tokens up to {int(samples.max())}, more than it knows; take its tokenizer or a larger vocabulary"
    return str(error).partition("\n")[0] or type(error).__name__


def _check_tokens(shape: tuple[int, ...], tokens: tuple[int, ...], vocabulary: int) -> None:
    if len(shape) != 2 or shape[:1] != tokens:
        raise InputError(f"the model gives {shape} numbers for a block of {tokens[0]} tokens; give some for each token")
    if shape[1] < vocabulary:
        raise InputError(
            f"the model knows {shape[1]} tokens but the text has {vocabulary}; take the tokenizer that the model was made with, or a "
            "larger vocabulary"
        )


def _check_pixels(shape: tuple[int, ...], num_classes: int, pixel_shape: tuple[int, ...] | None) -> None:
    """Refuse an output that is not [classes, ...], where `...` is the shape of a sample's targets."""
    wanted = (num_classes, *(shape[1:] if pixel_shape is None else pixel_shape))
    if len(shape) < 2 or shape != wanted:
        raise InputError(
            f"the model gives {shape} numbers for a sample, but targets of {pixel_shape or '[height, width]'} in {num_classes} classes "
            f"need {wanted}; change its last unit, or the shape of the targets"
        )
