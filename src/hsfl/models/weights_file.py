"""First weights from a file: a state dict as safetensors, for example torchvision's ResNet-18."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hsfl.errors import InputError
from hsfl.models.units import SplitModel

PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"}
COUNTER = "num_batches_tracked"


def load_init_weights(model: SplitModel, path: str | Path) -> list[str]:
    """Copy the file's tensors into the model; return the names in the classifier that kept their first weights.

    Those are the tensors of the last unit whose shapes differ (another number of classes). Everything else must
    match by name and shape, or nothing is copied. BatchNorm's step counters may be missing, as in torchvision's
    older files: they stay 0, and no result depends on them.
    """
    stored = _read(Path(path))
    model_tensors = model.state_dict()
    classifier = set(model.unit_state(model.num_units - 1))
    if problems := list(_problems(model_tensors, stored, classifier)):
        count_note = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InputError(f"init_weights {path}: {problems[0]}{count_note}")
    skipped = [name for name in model_tensors if name in stored and stored[name].shape != model_tensors[name].shape]
    with torch.no_grad():
        for name, tensor in model_tensors.items():
            if name in stored and name not in skipped:
                tensor.copy_(stored[name])
    return skipped


def _problems(model_tensors: Mapping[str, Tensor], stored: Mapping[str, Tensor], classifier: set[str]) -> Iterator[str]:
    """A sentence for each tensor that does not match, with a way out; the most telling come first."""
    unknown = {name: _shape(tensor) for name, tensor in stored.items() if name not in model_tensors}
    for name, shape in unknown.items():
        if name.endswith("running_mean"):
            yield f"{name} ({shape}) is BatchNorm's and the model has no place for it; choose norm = batch"
    for name, tensor in model_tensors.items():
        if name in stored and stored[name].shape != tensor.shape and name not in classifier:
            yield (
                f"{name} is {_shape(stored[name])} in the file but {_shape(tensor)} in the model, and only the "
                "classifier may differ; choose the model, input shape, stem and norm that the file was made for"
            )
    for name, tensor in model_tensors.items():
        if name not in stored and not name.endswith(COUNTER):
            yield f"{name} ({_shape(tensor)}) is missing from the file; choose the model that the file was made for"
    for name, shape in unknown.items():
        yield f"{name} ({shape}) is unknown to the model; choose the model that the file was made for"


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix.lower() in PICKLES:
        raise InputError(
            f"init_weights {path} is a pickle, which can run code; where you trust it, convert it with "
            f"safetensors.torch.save_file(torch.load({path.name!r}, weights_only=True), "
            f"{path.with_suffix('.safetensors').name!r})"
        )
    if not path.is_file():
        raise InputError(f"init_weights {path} is not a file; give the path of a safetensors file")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"init_weights {path} is not a readable safetensors file ({reason}); fetch it again") from None
