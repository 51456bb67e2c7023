"""Whether a model of one's own takes these samples and tells these classes apart."""

import copy

import torch
from torch import Tensor, nn

from hsfl.errors import InputError
from hsfl.models.units import SplitModel


def example(shape: tuple[int, ...]) -> Tensor:
    """One sample of this shape, all zeros."""
    return torch.zeros(1, *shape)


def check_fits(model: nn.Module, samples: Tensor, num_classes: int, targets: str = "classes") -> None:
    """Try a copy of the model, in evaluation mode, on samples [n, ...]; what the model raises becomes an error of one line.

    num_classes: how many numbers the model shall give. targets: of what (`hsfl.tasks`).
    """
    if not any(True for _ in model.parameters()):
        raise InputError("the model has no parameters, so there is nothing to train; give it a layer with weights")
    answer, units = samples, copy.deepcopy(model).eval()
    for name, unit in zip(units.unit_names, units.units) if isinstance(units, SplitModel) else [("", units)]:
        before = tuple(getattr(answer, "shape", ()))[1:]
        try:
            with torch.no_grad():
                answer = unit(answer)
        except Exception as error:  # a model of one's own may raise anything
            reason = str(error).partition("\n")[0] or type(error).__name__
            where = f"; unit {name} gets {before}" if before != tuple(samples.shape[1:]) else ""
            raise InputError(
                f"the model does not take samples of {tuple(samples.shape[1:])}{where}: {reason}; change "
                f"{f'unit {name}' if name else 'it'}"
            ) from None
    shape = tuple(getattr(answer, "shape", ()))
    if targets == "tokens":
        _check_tokens(shape[1:], tuple(samples.shape[1:]), num_classes)
        return
    if len(shape) != 2 or shape[1] != num_classes:
        raise InputError(
            f"the model gives {shape[1:]} numbers for a sample, but there are {num_classes} {WORDS[targets]}; change its last unit"
        )


WORDS = {"classes": "classes", "labels": "labels", "numbers": "columns of targets"}


def _check_tokens(shape: tuple[int, ...], tokens: tuple[int, ...], vocabulary: int) -> None:
    if len(shape) != 2 or shape[:1] != tokens:
        raise InputError(f"the model gives {shape} numbers for a block of {tokens[0]} tokens; give some for each token")
    if shape[1] < vocabulary:
        raise InputError(
            f"the model knows {shape[1]} tokens but the text has {vocabulary}; take the tokenizer that the model was made with, or a "
            "larger vocabulary"
        )
