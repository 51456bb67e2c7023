"""The small TOML file of each process, and the settings of the run that travel to other machines."""

import json
import os
import tomllib
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hsfl import plugins
from hsfl.codec_table import allowed_links
from hsfl.config import DEVICES_DATA, DataConfig, RunConfig, parse_config
from hsfl.config.reading import beside
from hsfl.errors import InputError, explain
from hsfl.framework_table import PROPOSED, copy_per_client_names, method
from hsfl.planning.fair_defaults import without_auto

TAU_S = 600.0  # where train.tau_s is not given: a client that takes longer is dropped from the round
NEVER_SENT = {
    "model": {"init_weights"},
    "data": {"dir", "name", "client_file", "test_file", "sha256"},
    "link": {"points", "max_points"},
}
HF = "hf:"  # before the path of a config of transformers
SENT = ("framework", "seed", "model", "data", "train", "fleet", "options", "link")  # what other machines get


MostSamples = Annotated[int, Field(ge=1)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MainSettings(_Table):
    """`hsfl serve main`."""

    listen: str = "127.0.0.1:7433"  # address and port
    edge: str = "127.0.0.1:7434"  # the edge server's address and port
    out: str = "run"  # the run folder
    certs: str | None = None  # the folder of this server's certificates
    clients: tuple[str, ...] = ()  # names that have seats from the start, in this order; others take free seats
    min_clients: int = Field(1, ge=1)  # a round that keeps fewer is made again
    first_clients: int | None = Field(None, ge=1)  # for the first round after a start; None: min_clients
    bench_after: int = Field(3, ge=0)  # offences, or late rounds in a row, after which a seat sits out; 0: never
    bench_rounds: int = Field(2, ge=1, le=10_000)  # that it sits out the first time, then twice as many each time
    bench_longest: int = Field(32, ge=1, le=1_000_000)  # rounds that it sits out at most
    # here: by the test samples of run.data, which lie on this machine; clients: by each client's own test samples
    evaluate: Literal["here", "clients", "none"] = "here"
    # what a client counts at most in the average: for all, or by its name; None: twice the median of the others where it trains the whole model
    max_samples: MostSamples | dict[str, MostSamples] | None = None
    on_jump: Literal["warn", "reject"] | None = None  # what to do when the loss on the operator's test samples jumps
    test_beside: bool = False  # whether a round's model is tested here while the next round trains
    jump: float = Field(2.0, gt=1)  # a loss jumps that is more than so many times the loss before the round
    input: tuple[int, ...] | None = None  # the shape of a sample, where run.data does not lie on this machine
    classes: int | None = Field(None, ge=2)  # the number of classes, likewise
    threads: int | None = Field(None, ge=1)  # of torch
    metrics: str | None = None  # address and port for Prometheus
    metrics_clients: Literal["names", "seats", "hashes"] = "names"  # what stands for a client among the metrics
    plugins: tuple[str, ...] = ()  # files that register the model, the policy or the data
    run: dict[str, Any] = Field(default_factory=dict)  # settings as of hsfl run

    def most_samples(self, name: str) -> int | None:
        """What the client with this name counts at most; None where the operator says nothing."""
        return self.max_samples.get(name) if isinstance(self.max_samples, dict) else self.max_samples

    @property
    def start_clients(self) -> int:
        return self.min_clients if self.first_clients is None else self.first_clients


class EdgeSettings(_Table):
    """`hsfl serve edge`."""

    listen: str = "127.0.0.1:7434"  # address and port
    out: str = "edge"  # the folder of this server's checkpoints
    certs: str | None = None  # the folder of this server's certificates
    threads: int | None = Field(None, ge=1)  # of torch
    metrics: str | None = None  # address and port for Prometheus
    plugins: tuple[str, ...] = ()  # files that register the model
    model: str | None = None  # a config of transformers, or its folder, where the run trains hf:...


class ClientSettings(_Table):
    """`hsfl client`."""

    name: str = Field(min_length=1, max_length=63)
    main: str = "127.0.0.1:7433"  # the main server's address and port
    edge: str = "127.0.0.1:7434"  # the edge server's address and port
    certs: str | None = None  # the folder of this client's certificates
    threads: int | None = Field(None, ge=1)  # of torch
    data: dict[str, Any] = Field(default_factory=dict)  # as data.* of hsfl run: the client's own samples
    # take the training samples that this client of a simulation has, instead of all; test samples are dealt out in turn
    as_client: int | None = Field(None, ge=0)
    min_cut: int = Field(1, ge=0)  # the client refuses smaller cuts: at cut 0 its inputs would leave it
    measure_s: float = Field(1.0, ge=0, le=60)  # for which the client measures itself when it joins
    away_s: float = Field(1800.0, ge=0, allow_inf_nan=True)  # the client ends when the main server is away for longer
    plugins: tuple[str, ...] = ()  # files that register the model or the data
    model: str | None = None  # a config of transformers, or its folder, where the run trains hf:...


Settings = TypeVar("Settings", bound=_Table)


def read_settings(path: Path, kind: type[Settings]) -> Settings:
    """The settings in a TOML file. Every path in it is from the file's folder, as in a config of `hsfl run`."""
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{path} is not there; docs/deploy.md has a {path.name} to begin with, or one like it"
        ) from None
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); give the file with the settings of this process"
        ) from None
    except ValueError as error:
        raise InputError(f"{path} cannot be read as TOML ({error}); give the settings of this process") from None
    try:
        settings = kind.model_validate(tree)
    except ValidationError as error:
        raise InputError(
            f"{path}: {explain(error, tree, kind, 'setting')}; docs/deploy.md lists the settings"
        ) from None
    return settings.model_copy(update=_from_folder(path, settings))


def _from_folder(path: Path, settings: _Table) -> dict[str, Any]:
    """The settings of a file that name paths, with these paths from the file's folder."""
    folder = path.parent
    given = {name: getattr(settings, name, None) for name in ("out", "certs", "model")}
    paths: dict[str, Any] = {name: os.path.join(folder, value) for name, value in given.items() if value is not None}
    if files := getattr(settings, "plugins", ()):
        paths["plugins"] = tuple(os.path.join(folder, file) for file in files)
    if run := getattr(settings, "run", None):
        paths["run"] = beside(path, run)
    if data := getattr(settings, "data", None):
        paths["data"] = beside(path, {"data": data})["data"]
    return paths


def _check_codecs(config: RunConfig) -> None:
    """Refuse codecs that are none, or not one for each seat; whether the framework has codecs by client is checked with its cuts."""
    codecs, seats = config.link.codecs, config.fleet.num_clients
    allowed_links(config.link)
    if codecs is not None and len(codecs) != seats:
        raise InputError(f"run.link.codecs has {len(codecs)} entries but there are {seats} seats; give one for each")


def run_config(settings: MainSettings) -> RunConfig:
    """The settings of the run, from a main server's file."""
    plugins.load_plugins_of(settings.plugins)
    config = parse_config(_named(settings))
    if config.plugins:
        raise InputError("run.plugins is given; name the files in plugins, beside listen and out")
    if not method(config.framework).copy_per_client:
        names = ", ".join(copy_per_client_names())
        raise InputError(
            f"run.framework is {config.framework!r}, which real machines do not run; choose one of {names}"
        )
    _check_own_round(config.framework)
    if config.train.choose == "samples":
        raise InputError(
            "run.train.choose is 'samples', which needs everybody's data; real machines take all that are there, leave it out"
        )
    if config.train.norm_statistics != "averaged":
        raise InputError(
            f"run.train.norm_statistics is {config.train.norm_statistics!r}, which real machines do not do yet; leave it out"
        )
    _check_codecs(config)
    _check_robust(settings, config)
    if config.network.service != "turns" and config.network.server == "shares":
        raise InputError(
            f"run.network.service is {config.network.service!r} but run.network.server is 'shares', by which clients take turns in "
            "proportion to their shares; leave one of them out"
        )
    seats = len(settings.clients)
    if seats > config.fleet.num_clients:
        raise InputError(
            f"clients names {seats} but run.fleet.num_clients is {config.fleet.num_clients}; raise it to the most that may join"
        )
    if max(settings.min_clients, settings.start_clients) > config.fleet.num_clients:
        raise InputError(
            f"min_clients and first_clients are {settings.min_clients} and {settings.start_clients} but "
            f"run.fleet.num_clients is {config.fleet.num_clients}; lower them"
        )
    few = config.train.clients_per_round
    if few is not None and settings.min_clients > few:
        raise InputError(
            f"min_clients is {settings.min_clients} but run.train.clients_per_round is {few}, so that no round would keep enough; "
            "lower min_clients"
        )
    return without_auto(config)


def _check_robust(settings: MainSettings, config: RunConfig) -> None:
    """Refuse rules that need every client's update in one place, simulated attackers, and a watch that has nothing to look at."""
    if config.train.average != "mean":
        raise InputError(
            f"run.train.average is {config.train.average!r}, which needs every client's update side by side; real servers hold sums, and "
            "swap those alone: leave it out, and set run.train.clip_norm"
        )
    if config.attack.kind is not None:
        raise InputError(
            f"run.attack.kind is {config.attack.kind!r}; attackers are simulated by hsfl run, so leave it out on real machines"
        )
    if settings.test_beside and (settings.evaluate != "here" or settings.on_jump == "reject"):
        name, value = ("evaluate", settings.evaluate) if settings.evaluate != "here" else ("on_jump", settings.on_jump)
        raise InputError(
            f"test_beside is true but {name} is {value!r}: only a test on this machine, for which no round waits, can be made beside the "
            f"next round; leave test_beside out, or change {name}"
        )
    if settings.on_jump is not None and settings.evaluate != "here":
        raise InputError(
            f"on_jump is {settings.on_jump!r} but evaluate is {settings.evaluate!r}: only the operator's own test samples can be "
            "trusted; set evaluate=here, or leave on_jump out"
        )


def _check_own_round(name: str) -> None:
    """Refuse a framework that changes the round: real machines run the built-in round, and what the class adds would be left out in silence."""
    from hsfl.frameworks import find_framework  # here, because it loads torch
    from hsfl.frameworks.hooks import overridden_hooks

    framework, usual = find_framework(name), find_framework(PROPOSED)
    own_round = [part for part in ("init", "round", "models") if getattr(framework, part) is not getattr(usual, part)]
    if changed := [*overridden_hooks(framework), *own_round]:
        raise InputError(
            f"run.framework is {name!r}, whose {changed[0]} real machines do not run; simulate it with hsfl run, or choose "
            f"{PROPOSED}"
        )


def _named(settings: MainSettings) -> dict[str, Any]:
    """The settings of the run. Where the main server needs no data, `data.name` is DEVICES_DATA: the default data set's
    name would be wrong."""
    run, elsewhere = settings.run, settings.evaluate != "here" and settings.input is not None
    data = run.get("data", {})
    named = isinstance(data, dict) and "name" not in data
    return run | {"data": data | {"name": DEVICES_DATA}} if elsewhere and named else run


def sent_settings(config: RunConfig) -> str:
    """What another machine needs of the run's settings, as JSON: no paths, no devices, no network."""
    tree = config.model_dump(mode="json", include=set(SENT))
    for section, names in NEVER_SENT.items():
        tree[section] = {name: value for name, value in tree[section].items() if name not in names}
    tree["fleet"] = {"num_clients": config.fleet.num_clients}
    if (name := config.model.name).startswith(HF):
        tree["model"]["name"] = HF + PurePath(name.removeprefix(HF)).name
    return json.dumps(tree, allow_nan=False)


def received_config(
    settings: str, data: dict[str, Any] | None = None, simulated: bool = False, model_path: str | None = None
) -> RunConfig:
    """The config from the settings that the main server sent, of which none names a file of this machine.

    data: this machine's own data settings. simulated: divide the data as a simulation of the run does, instead of taking all.
    model_path: this machine's own config of a model of transformers, where the run trains one.
    """
    try:
        tree = json.loads(settings)
        sections = {name: tree[name] for name in SENT if name in tree}
        for section, names in NEVER_SENT.items():
            sections[section] = {name: value for name, value in sections[section].items() if name not in names}
        sent = sections["data"] if simulated else {"augment": sections["data"]["augment"]}
        sections["data"] = sent | (data or {})
        name = str(sections["model"].get("name", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"the main server's settings cannot be read ({error}); install the same hsfl") from None
    if name.startswith(HF):
        if model_path is None:
            raise InputError(
                f"the run trains {name}, and model is not given; copy that config, or its folder, to this machine, and name it as model in "
                "this machine's file"
            )
        sections["model"]["name"] = HF + model_path
    return parse_config(sections)


def client_data_settings(settings: ClientSettings) -> dict[str, Any]:
    """The client's data settings; an unknown name among them is an error."""
    unknown = settings.data.keys() - DataConfig.model_fields.keys()
    if unknown:
        raise InputError(f"data.{min(unknown)} is no setting of data; docs/settings.md lists them")
    return settings.data
