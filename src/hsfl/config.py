"""One tree of settings for a run, frozen, read from TOML or JSON and changed with `section.field=value`."""

import difflib
import json
import reprlib
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from hsfl.errors import InputError

MAX_SIDE = 1024  # of an image, in pixels; more than this is a slip of the finger
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise PydanticCustomError("not_a_bool", "another value than true or false")
        return value


OWN_MODEL = "own"  # the name of a model that was given from Python


class ModelConfig(_Section):
    name: str = "resnet18"
    input: tuple[Side, Side, Side] | None = Field(  # images are resized to it; None: as the data
        None, description=f"three numbers: channels, height and width, such as [3, 32, 32], at most {MAX_SIDE}"
    )
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
    image_size: int | None = Field(None, ge=8, le=MAX_SIDE)  # of image folders
    split: Literal["lesion", "image"] = "lesion"  # of ham10000: by image leaks lesions into the test set
    augment: Literal["none", "flip_crop"] = "none"


class FleetConfig(_Section):
    """Who can do what. Ranges are uniform draws, by default the paper's; `file` gives explicit devices instead."""

    num_clients: int = Field(10, ge=1)
    seed: int | None = Field(None, ge=0)  # draws devices and channel, apart from data and weights; None: the run's seed
    cuts: Literal["max_cut", "fastest", "planned"] | int | tuple[int, ...] = Field(
        "max_cut",  # as deep as each can hold; fastest under the even allocation; planned: the policy's
        description="one cut for all (3), one for each client ([3, 4, 5]), max_cut, fastest or planned",
    )
    one_cut: Literal["fastest"] | int | None = Field(
        None,  # of frameworks with one cut for all: the smallest of the cuts given, else the smallest max_cut
        description="one cut for all (3) or fastest",
    )
    max_cut: int | tuple[int, ...] | None = Field(
        None,  # from storage, or drawn for each client in 3..num_units
        description="one for all (5), one for each client ([5, 6, 7])",
    )
    min_cut: int = Field(1, ge=0)  # 0 would send raw data to the main server
    cpu_hz: tuple[float, float] = Field((0.0, 10e10), description="a range of cycles per second, such as [1e9, 5e9]")
    cpu_floor_hz: float = Field(0.05e10, gt=0)
    flops_per_cycle: float = Field(1.0, gt=0)
    max_power_w: tuple[float, float] = Field((1.0, 10.0), description="a range of watts, such as [1, 10]")  # uplink
    heterogeneity: float = Field(1.0, ge=0, le=1)  # 0: all clients equal to the mean
    storage_bits: tuple[float, float] | None = Field(  # gives max_cut
        None, description="a range of bits, such as [1e8, 1e9]"
    )
    storage: Literal["training", "parameters"] = "training"  # what must fit
    file: str | None = None  # JSON or TOML with cpu_hz, max_power_w, and max_cut or storage_bits, lists


_Bps = float | tuple[float, ...] | None
_BPS = Field(None, description="bits per second for all (5e6), one for each client ([5e6, 1e7])")


class NetworkConfig(_Section):
    """The radio (or measured links) and the servers; the defaults are the paper's.

    Measured links need `main_up_bps` and `main_down_bps`; those to the edge server are the same unless given.
    """

    kind: Literal["ofdma", "measured"] = "ofdma"
    num_subchannels: int = Field(10, ge=1)
    subchannel_hz: float = Field(1e6, gt=0)
    noise_w: float = Field(1e-3, gt=0)  # per subchannel
    fading: Literal["normal", "rayleigh"] = "normal"
    gain_floor: float = Field(0.01, gt=0)
    radius_m: float | None = Field(None, gt=0)  # path loss: clients uniform in a disc; None: no path loss
    positions_m: tuple[tuple[float, float], ...] | None = Field(  # path loss
        None, description="a place in metres for each client, such as [[10, 0], [0, 25]]"
    )
    main_m: tuple[float, float] = Field((0.0, 0.0), description="a place in metres, such as [0, 50]")
    edge_m: tuple[float, float] = Field((0.0, 0.0), description="a place in metres, such as [0, 50]")
    path_loss_exponent: float = Field(3.0, gt=0)
    path_loss_db: float = 30.0  # at one metre
    main_up_bps: _Bps = _BPS
    main_down_bps: _Bps = _BPS
    edge_up_bps: _Bps = _BPS
    edge_down_bps: _Bps = _BPS
    main_hz: float = Field(100e10, gt=0)
    flops_per_cycle: float = Field(1.0, gt=0)  # of the main server
    main_power_w: float = Field(100.0, gt=0)
    edge_power_w: float = Field(100.0, gt=0)
    speed_std: float = Field(0.1, ge=0, le=10)  # of a client's speed from round to round, relative
    history: str | None = None  # CSV or npz of recorded rounds, played back
    sample_scale: float = Field(1.0, gt=0)  # samples the clock charges for each one trained on, for runs on a subset
    full_batches: bool = False  # charge whole batches; else the samples that there are


class AllocationConfig(_Section):
    """Who gets which cycles, subchannels and power, and how `fleet.cuts = "planned"` are found."""

    # or proposed, rcls, scls, ecfa, gtra, etra, etra_even, splitfed, cpsl; names joined by + change several decisions;
    # own: what each framework's authors chose
    policy: str = "even"
    cuts: Literal["descent", "ga", "exhaustive"] = "descent"  # how cuts are searched
    samples: int = Field(20, ge=1)  # rounds that a plan averages over
    sharing: Literal["auto", "exclusive", "bandwidth"] = "auto"  # bandwidth when clients outnumber subchannels
    gap: float = Field(1e-3, gt=0, lt=1)  # proven distance to the optimum at which a round's solve stops
    time_limit_s: float = Field(10.0, gt=0)  # of a round's solve, in real seconds
    plan_time_limit_s: float = Field(60.0, gt=0)  # of the search for cuts
    population: int = Field(50, ge=2)  # of the genetic algorithm
    patience: int = Field(10, ge=1)  # its generations, or descent's kicks, without improvement that end the search


class TrainConfig(_Section):
    rounds: int = Field(10, ge=1, le=10**9)
    budget_s: float | None = Field(None, gt=0)  # simulated; the round that would cross it is not begun
    tau_s: float | None = Field(
        None, gt=0
    )  # training and upload that take longer are dropped from the round; None: wait
    batch_size: int = Field(256, ge=1)
    local_epochs: int = Field(1, ge=1, le=10_000)
    optimizer: Literal["sgd", "momentum", "adam"] = "adam"
    lr: float = Field(0.001, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)  # of `momentum`
    weight_decay: float = Field(0.0, ge=0)
    schedule: Literal["constant", "cosine", "step"] = "constant"
    step_rounds: int = Field(10, ge=1)  # of `step`: the rate falls every so many rounds
    step_factor: float = Field(0.1, gt=0, le=1)
    proximal_mu: float = Field(0.0, ge=0, le=1e6)  # FedProx, for frameworks that train a copy per client
    clients_per_round: int | None = Field(None, ge=1)  # None: all
    drop_rate: float = Field(0.0, ge=0, le=1)  # each client misses a round with this probability
    eval_every: int = Field(1, ge=1)  # rounds; the last round is always evaluated


class OptionsConfig(_Section):
    """Choices inside single frameworks, as their papers leave them open."""

    fl_needs_storage: bool = False  # FL leaves out clients that cannot hold the whole model
    sl_hand_optimizer: bool = False  # the head's optimiser state travels with it and is counted; else it starts anew
    fsl_average: Literal["both", "server"] = "both"
    psl_cut_gradient: bool = False
    cpsl_clusters: int = Field(2, ge=1)
    cpsl_clustering: Literal["random", "gibbs"] = "random"
    cpsl_cut: Literal["one", "cluster"] = "one"
    locfedmix_alpha: float = Field(1.0, gt=0)  # of the Beta that mixes smashed data
    locfedmix_reconstruction: float = Field(0.1, ge=0)  # weight of the local loss


class LogConfig(_Section):
    checkpoint_every: int = Field(1, ge=1)  # rounds
    model_every: int | None = Field(None, ge=1)  # rounds after which a model of its own is kept in models/; None: never
    tensorboard: bool = False


class RunConfig(_Section):
    framework: str = "hsfl"
    seed: int = Field(0, ge=0)
    device: Literal["cpu", "cuda", "mps"] = "cpu"
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    fleet: FleetConfig = FleetConfig()
    network: NetworkConfig = NetworkConfig()
    train: TrainConfig = TrainConfig()
    allocation: AllocationConfig = AllocationConfig()
    options: OptionsConfig = OptionsConfig()
    log: LogConfig = LogConfig()

    @property
    def fleet_seed(self) -> int:
        """What draws the devices and the channel."""
        return self.seed if self.fleet.seed is None else self.fleet.seed


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


def with_changes(config: RunConfig, changes: Iterable[str]) -> RunConfig:
    """The config after `section.field=value` changes."""
    tree = config.model_dump(mode="json")
    for change in changes:
        _apply(tree, change)
    return parse_config(tree)


def parse_config(tree: Mapping[str, Any]) -> RunConfig:
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise InputError(_explain(error.errors()[0], tree)) from None


def _read_tree(source: str) -> dict[str, Any]:
    if source in presets():
        return tomllib.loads(resources.files("hsfl.presets").joinpath(f"{source}.toml").read_text("utf-8"))
    path = Path(source)
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, ValueError):
        raise InputError(
            f"config {source!r} is neither a readable file nor a preset; presets: {', '.join(presets())}"
        ) from None
    try:
        tree = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
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
    """A TOML value where it is one (1, 0.5, true, [1, 2]); `null` for nothing; else the words themselves."""
    if text == "null":
        return None
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text  # no field is a date


def _explain(problem: Mapping[str, Any], tree: Mapping[str, Any]) -> str:
    """What is wrong, in one line: the field, its value, the way out."""
    path, field, value = _locate(problem["loc"], tree)
    if problem["type"] == "extra_forbidden":
        return f"unknown config field {path!r}; {_suggest(path)}"
    if problem["type"] == "model_type":
        return f"config {path} is {reprlib.repr(value)} but it is a section; set its fields: {_fields_of(path)}"
    wanted = field.description if field is not None and field.description else _wanted(problem)
    if field is not None and type(None) in get_args(field.annotation):
        wanted += " or null"
    return f"config {path} is {reprlib.repr(value)}; give {wanted}"


def _wanted(problem: Mapping[str, Any]) -> str:
    """What a field takes, in words, from pydantic's name for the problem: int_parsing, literal_error, less_than..."""
    kinds = {"int": "a whole number", "float": "a number", "finite": "a finite number", "bool": "true or false"}
    ranges = {
        "greater_than_equal": "a number of at least {ge}",
        "greater_than": "a number above {gt}",
        "less_than_equal": "a number of at most {le}",
        "less_than": "a number below {lt}",
        "literal_error": "{expected}",
        "string_type": "text",
    }
    kind = problem["type"]
    if kind in ranges:
        return ranges[kind].format(**problem.get("ctx", {}))
    return kinds.get(kind.partition("_")[0], problem["msg"])


def _locate(loc: tuple[int | str, ...], tree: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """The field's dotted name, its declaration (None: unknown) and its value in the tree.

    Pydantic goes on below the field, with a list's positions and a union's branches; people think in fields.
    """
    section: Any = RunConfig
    names: list[str] = []
    field, value = None, tree
    for part in loc:
        if not _is_section(section):
            break
        names.append(str(part))
        field, value = section.model_fields.get(str(part)), value[str(part)]
        section = field.annotation if field is not None else None
    return ".".join(names), field, value


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _field_names() -> list[str]:
    """Every field's dotted name."""
    names = []
    for name, field in RunConfig.model_fields.items():
        section: Any = field.annotation
        names += [f"{name}.{inner}" for inner in section.model_fields] if _is_section(section) else [name]
    return names


def _fields_of(section: str) -> str:
    return ", ".join(name for name in _field_names() if name.startswith(f"{section}."))


def _suggest(unknown: str) -> str:
    """The same name in another section, else a like name beside it, else all names there."""
    section, _, last = unknown.rpartition(".")
    every = _field_names()
    here = [name for name in every if name.startswith(f"{section}.")] if section else list(RunConfig.model_fields)
    same = [name for name in every if name.rpartition(".")[2] == last]
    alike = difflib.get_close_matches(last, [name.rpartition(".")[2] for name in here], 1, 0.6)
    near = same or [name for name in here if name.rpartition(".")[2] in alike]
    return f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(here)}"
