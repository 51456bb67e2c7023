"""One tree of settings for a run, frozen, read from TOML or JSON and changed with `section.field=value`."""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hsfl.errors import InputError


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelConfig(_Section):
    name: str = "resnet18"
    input: tuple[int, int, int] | None = None  # channels, height, width; images are resized to it; None: as the data
    norm: Literal["batch", "group", "none"] = "batch"
    stem: Literal["imagenet", "cifar"] = "imagenet"
    dropout: float | None = Field(None, ge=0, lt=1)  # where the model has dropout; None: the model's own
    init_weights: str | None = None  # a state dict in safetensors


class DataConfig(_Section):
    name: str = "digits"  # mnist, cifar10, ham10000, digits, idx:PATH, folder:PATH
    dir: str | None = None  # None: HSFL_DATA, else the user's cache
    partition: Literal["iid", "dirichlet", "shards", "quantity_skew"] = "iid"
    alpha: float = Field(0.5, gt=0)  # of dirichlet and quantity_skew: small is uneven
    classes_per_client: int = Field(2, ge=1)  # of shards
    min_samples: int = Field(2, ge=1)  # every client gets at least these
    limit: int | None = Field(None, ge=1)  # training samples, a random subset
    limit_test: int | None = Field(None, ge=1)
    image_size: int | None = Field(None, ge=8)  # of image folders
    split: Literal["lesion", "image"] = "lesion"  # of ham10000: by image leaks lesions into the test set
    augment: Literal["none", "flip_crop"] = "none"


class FleetConfig(_Section):
    num_clients: int = Field(10, ge=1)
    cuts: Literal["max_cut"] | int | tuple[int, ...] = "max_cut"  # one for all, one each, or as deep as each can
    max_cut: int | tuple[int, ...] | None = None  # None: drawn for each client, uniform in 3..num_units
    min_cut: int = Field(1, ge=0)  # 0 would send raw data to the main server


class TrainConfig(_Section):
    rounds: int = Field(10, ge=1)
    batch_size: int = Field(256, ge=1)
    local_epochs: int = Field(1, ge=1)
    optimizer: Literal["sgd", "momentum", "adam"] = "adam"
    lr: float = Field(0.001, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)  # of `momentum`
    weight_decay: float = Field(0.0, ge=0)
    schedule: Literal["constant", "cosine", "step"] = "constant"
    step_rounds: int = Field(10, ge=1)  # of `step`: the rate falls every so many rounds
    step_factor: float = Field(0.1, gt=0, le=1)
    proximal_mu: float = Field(0.0, ge=0)  # FedProx, for frameworks that train a copy per client
    clients_per_round: int | None = Field(None, ge=1)  # None: all
    drop_rate: float = Field(0.0, ge=0, le=1)  # each client misses a round with this probability
    eval_every: int = Field(1, ge=1)  # rounds; the last round is always evaluated


class OptionsConfig(_Section):
    """Choices inside single frameworks, as their papers leave them open."""

    fsl_average: Literal["both", "server"] = "both"
    psl_cut_gradient: bool = False
    cpsl_clusters: int = Field(2, ge=1)
    cpsl_cut: Literal["one", "cluster"] = "one"
    locfedmix_alpha: float = Field(1.0, gt=0)  # of the Beta that mixes smashed data
    locfedmix_reconstruction: float = Field(0.1, ge=0)  # weight of the local loss


class LogConfig(_Section):
    checkpoint_every: int = Field(1, ge=1)  # rounds
    tensorboard: bool = False


class RunConfig(_Section):
    framework: str = "hsfl"
    seed: int = Field(0, ge=0)
    device: Literal["cpu", "cuda", "mps"] = "cpu"
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    fleet: FleetConfig = FleetConfig()
    train: TrainConfig = TrainConfig()
    options: OptionsConfig = OptionsConfig()
    log: LogConfig = LogConfig()


def presets() -> list[str]:
    return sorted(
        path.name.removesuffix(".toml")
        for path in resources.files("hsfl.presets").iterdir()
        if path.name.endswith(".toml")
    )


def read_config(source: str | Path | None = None, changes: Iterable[str] = ()) -> RunConfig:
    """A preset's name, a .toml or .json file, or nothing (the defaults); then `section.field=value` changes."""
    tree = _read_tree(str(source)) if source is not None else {}
    for change in changes:
        _apply(tree, change)
    return parse_config(tree)


def parse_config(tree: Mapping[str, Any]) -> RunConfig:
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise InputError(_explain(error)) from None


def _read_tree(source: str) -> dict[str, Any]:
    if source in presets():
        return tomllib.loads(resources.files("hsfl.presets").joinpath(f"{source}.toml").read_text())
    path = Path(source)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        raise InputError(
            f"config {source!r} is neither a readable file nor a preset; presets: {', '.join(presets())}"
        ) from None
    try:
        tree = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{source} cannot be read as {path.suffix.lstrip('.') or 'toml'}: {error}") from None
    if not isinstance(tree, dict):
        raise InputError(f"{source} holds {type(tree).__name__}; a config is a table of sections")
    return tree


def _apply(tree: dict[str, Any], change: str) -> None:
    name, equals, text = change.partition("=")
    *sections, field = name.strip().split(".")
    if not equals or not field:
        raise InputError(f"--set {change!r} is not of the form section.field=value, such as train.rounds=20")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise InputError(f"--set {change!r}: {section} is a value, not a section")
    tree[field] = _value(text.strip())


def _value(text: str) -> Any:
    """A TOML value where it is one (1, 0.5, true, [1, 2]); `none` for null; else the words themselves."""
    if text.lower() in ("none", "null"):
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(error: ValidationError) -> str:
    """The first thing that is wrong, in one line."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if part in _field_names() or isinstance(part, int)]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        section: Any = RunConfig
        for part in first["loc"][:-1]:
            section = section.model_fields[str(part)].annotation
        unknown, known = str(first["loc"][-1]), list(section.model_fields)
        near = difflib.get_close_matches(unknown, known, 1, 0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
        return f"unknown config field {name!r}; {hint}"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"config {'.'.join(path) or name} is {first['input']!r}; {message}"


def _field_names() -> set[str]:
    sections = [field.annotation for field in RunConfig.model_fields.values()]
    names = set(RunConfig.model_fields)
    for section in sections:
        if isinstance(section, type) and issubclass(section, BaseModel):
            names |= set(section.model_fields)
    return names
