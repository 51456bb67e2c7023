"""From a preset, a TOML or JSON file or a run folder to a checked `RunConfig`: `read_config`, and `with_changes` for `section.field=value`.

Paths in a config file are from the folder of that file; a run folder's config names the copies that the folder holds. Options of plugins
are checked by the plugins' own models.
"""

import json
import os
import re
import reprlib
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from hsfl import fleet_file
from hsfl.config.field_names import config_fields, fields_of
from hsfl.config.options import OptionsConfig
from hsfl.config.sections import RunConfig
from hsfl.errors import InputError, explain, unknown_field
from hsfl.plugins import OPTIONS, find_installed, load_plugins_of

RUN_CONFIG = "config.json"  # of a run folder
INPUTS = "inputs"  # the part of a run folder that holds copies of files that its config names
KEPT = (("fleet", "file"), ("network", "history"), ("model", "init_weights"), ("link", "points"))  # are copied there
FIELDS = (*KEPT, ("data", "dir"))
DATA_FIELDS = ("client_file", "test_file", "tokenizer")  # may lie in the data directory, too
LINKS = (("link", "up"), ("link", "down"), ("link", "model"))
DATA_KINDS = ("idx", "folder", "npz", "csv", "text")  # of data.name = "kind:PATH"
YAML_SECTION = re.compile(r"^[\w-]+:(\s|$)", re.MULTILINE)  # no line of a TOML file begins so


def presets() -> list[str]:
    """Names of the configs that come with the package."""
    return sorted(
        path.name.removesuffix(".toml")
        for path in resources.files("hsfl.presets").iterdir()
        if path.name.endswith(".toml")
    )


def read_config(
    source: str | Path | Mapping[str, Any] | None = None,
    changes: Iterable[str] = (),
    plugins: Iterable[str | Path] = (),
) -> RunConfig:
    """The config of a source with some changes.

    source: a preset's name, a .toml or .json file, the folder of a run, plain data that HSFL wrote, or None for the defaults.
    changes: settings such as "train.rounds=20", applied in turn.
    plugins: files to load first. The files that the config names are loaded, too (a run folder's `config.json` may name
        none), and so is an installed plugin for each name that is not built in.
    """
    load_plugins_of(plugins)
    tree, of_a_run = _settings_of(source)
    if of_a_run and tree.get("plugins"):
        raise InputError(f"{source} names plugins, but nothing is loaded for a run folder; give --plugin FILE yourself")
    for change in changes:
        _apply(tree, change)
    _count_devices(tree)
    _load_plugins(tree, look=not of_a_run)
    return parse_config(tree, of_a_folder=of_a_run)


def read_options(changes: Iterable[str], plugins: Iterable[str | Path], names: Iterable[str]) -> OptionsConfig:
    """The options of a config with these changes. plugins: files to load first. names: of the models or policies in
    use; changes to the options of others are refused."""
    changes, wanted = list(changes), tuple(f"options.{name}." for name in names)
    for change in changes:
        if not set_name(change).startswith(wanted):
            raise InputError(f"--set {change!r} has no effect here; give {wanted[0]}FIELD=VALUE, or leave it out")
    return read_config(None, changes, plugins).options


def _settings_of(source: str | Path | Mapping[str, Any] | None) -> tuple[dict[str, Any], bool]:
    """The settings of a source, with paths from where it lies, and whether HSFL wrote it."""
    if source is None or isinstance(source, Mapping):
        return dict(source or {}), source is not None
    file = config_file(source)
    tree = read_tree(str(file))
    if is_of_a_run(file):
        tree = from_folder(Path(str(file)).parent, tree)
        parse_stored(tree, str(file))
        return tree, True
    return (tree if str(file) in presets() else beside(Path(str(file)), tree)), False  # typed paths are from here


def config_file(source: str | Path | None) -> str | Path | None:
    """The source itself, or the config of the run in the folder that it names."""
    if source is None or str(source) in presets() or not Path(source).is_dir():
        return source
    if not (Path(source) / RUN_CONFIG).is_file():
        raise InputError(
            f"{source} is a folder without {RUN_CONFIG}; give the folder of a run, a .toml file, or a preset: "
            f"{', '.join(presets())}"
        )
    return Path(source) / RUN_CONFIG


def is_of_a_run(source: str | Path | None) -> bool:
    """Whether a config is that of a run folder, which HSFL wrote."""
    return source is not None and Path(source).name == RUN_CONFIG


def read_tree(source: str) -> dict[str, Any]:
    """The settings of a preset or a file as they stand there."""
    if source in presets():
        return tomllib.loads(resources.files("hsfl.presets").joinpath(f"{source}.toml").read_text("utf-8"))
    path = Path(source)
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"config {source!r} is no text in UTF-8; save it as UTF-8") from None
    except (OSError, ValueError):
        near = get_close_matches(source.lower(), presets(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(
            f"config {source!r} is neither a readable file nor a preset; {hint}presets: {', '.join(presets())}"
        ) from None
    yaml = f"{source} is YAML but a config is TOML: a line [train], and below it rounds = 20; write it so"
    if path.suffix.lower() in (".yaml", ".yml"):
        raise InputError(f"{yaml}, as {path.with_suffix('.toml')}")
    try:
        tree = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        if path.suffix != ".json" and YAML_SECTION.search(text):
            raise InputError(yaml) from None
        raise InputError(f"{source} cannot be read as {path.suffix.lstrip('.') or 'toml'}: {error}") from None
    if not isinstance(tree, dict):
        raise InputError(f"{source} holds {type(tree).__name__}; a config is a table of sections")
    return tree


def with_changes(config: RunConfig, changes: Iterable[str], look: bool = True) -> RunConfig:
    """A copy of the config with changes such as "train.rounds=20" applied in turn.

    Installed plugins are looked up for the names in the changes alone: the config itself may come from a run folder. What nobody
    set stays so, since a plan asks whether somebody set the policy. look: False where the changes come from a folder, too.
    """
    tree = config.model_dump(mode="json", exclude_unset=True) | {"plugins": list(config.plugins)}
    typed: dict[str, Any] = {}
    for change in changes:
        _apply(tree, change)
        _apply(typed, change)
    load_plugins_of(config.plugins)
    _load_plugins(typed, look=look)
    return parse_config(tree)


def resolved(config: RunConfig) -> RunConfig:
    """The config with its plugins loaded and their options checked."""
    load_plugins_of(config.plugins)
    return parse_config(config.model_dump(mode="json") | {"plugins": list(config.plugins)})


def parse_config(tree: Mapping[str, Any], of_a_folder: bool = False) -> RunConfig:
    """A config from plain data; no plugin is loaded. of_a_folder: options of plugins that are not loaded stay plain data."""
    try:
        config = RunConfig.model_validate(dict(tree))
    except ValidationError as error:
        raise InputError(explain(error, tree, RunConfig, "config", known_fields=config_fields())) from None
    return _with_plugin_options(config, of_a_folder)


def parse_stored(tree: Mapping[str, Any], file: str | Path) -> RunConfig:
    """The config that HSFL wrote to a file, which an error names. Options of plugins that are not loaded stay plain data."""
    try:
        return parse_config(tree, of_a_folder=True)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


# --- one change: section.field=value


def set_name(change: str) -> str:
    """The name of the field that a change such as "train.rounds=20" sets."""
    return change.partition("=")[0].strip()


def set_names(change: str) -> list[str]:
    """The names of all fields that a change sets: a whole section may be given at once, as in "train={rounds=20, lr=0.1}"."""
    return list(flatten({set_name(change): _value(change.partition("=")[2].strip())}))


def _apply(tree: dict[str, Any], change: str) -> None:
    _, equals, text = change.partition("=")
    *sections, field = set_name(change).split(".")
    if not equals or not field:
        raise InputError(f"--set {change!r} is not of the form section.field=value, such as train.rounds=20")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise InputError(f"--set {change!r}: {section} is a value, not a section")
    tree[field] = _value(text.strip())


def _value(text: str) -> Any:
    """The value that a text stands for: a TOML value (1, 0.5, true, [1, 2]), None for `null`, else the text itself."""
    if text == "null":
        return None
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text  # no field is a date


# --- files that a config names


def beside(source: Path, tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with its paths from the folder of the config file `source`; absolute ones and ~ stay as they are.

    What is of the wrong type stays, too: it is told where the tree is checked.
    """
    folder = source.parent
    settings = {name: dict(fields) if isinstance(fields, Mapping) else fields for name, fields in tree.items()}
    for section, field in FIELDS:
        fields = settings.get(section)
        if isinstance(fields, dict) and isinstance(fields.get(field), str):
            fields[field] = _joined(folder, fields[field])
    data = settings.get("data")
    if isinstance(data, dict) and isinstance(data.get("name"), str):
        kind, colon, path = data["name"].partition(":")
        data["name"] = f"{kind}:{_joined(folder, path)}" if colon and kind in DATA_KINDS else data["name"]
    model = settings.get("model")
    if isinstance(model, dict) and str(model.get("name")).startswith("hf:"):
        model["name"] = f"hf:{_joined(folder, model['name'].removeprefix('hf:'))}"
    for field in DATA_FIELDS:
        if isinstance(data, dict) and isinstance(data.get(field), str) and (folder / data[field]).is_file():
            data[field] = _joined(folder, data[field])
    files = settings.get("plugins")
    if isinstance(files, list) and all(isinstance(file, str) for file in files):
        settings["plugins"] = [_joined(folder, file) for file in files]
    return settings


def from_folder(folder: Path, tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of a run folder's config with the files that the folder holds; paths to other places stay as they are."""
    settings = {name: dict(fields) if isinstance(fields, Mapping) else fields for name, fields in tree.items()}
    for section, field in KEPT:
        fields = settings.get(section)
        if isinstance(fields, dict) and isinstance(fields.get(field), str) and fields[field].startswith(f"{INPUTS}/"):
            fields[field] = str(folder / INPUTS / Path(fields[field]).name)
    return settings


def _joined(folder: Path, path: str) -> str:
    if not path or path.startswith("~") or Path(path).is_absolute():
        return path
    return os.path.normpath(folder / path)


def _count_devices(tree: dict[str, Any]) -> None:
    """Where a fleet file is there and fleet.num_clients is not given, it is the number of the file's devices."""
    fleet = tree.get("fleet")
    if not isinstance(fleet, dict) or "num_clients" in fleet or not isinstance(fleet.get("file"), str):
        return
    if Path(fleet["file"]).is_file():  # a file that is missing is told by who needs it
        fleet["num_clients"] = len(fleet_file.read_fleet_file(fleet["file"]).devices)


# --- plugins and their options


def _load_plugins(tree: Mapping[str, Any], look: bool) -> None:
    """Load the plugin files that a tree of settings names and, with `look`, installed plugins of the names in it.

    A tree of the wrong form is not told here but where it is checked."""
    files = tree.get("plugins", ())
    if isinstance(files, list | tuple) and all(isinstance(file, str) for file in files):
        load_plugins_of(files)
    if look:
        sections = {name: value for name, value in tree.items() if isinstance(value, Mapping)}
        places = (("model", "name"), ("data", "name"), ("allocation", "policy"), *LINKS)
        names = [tree.get("framework"), *(sections.get(section, {}).get(field) for section, field in places)]
        link = sections.get("link", {})
        for field in ("allowed", "codecs"):
            pairs = link.get(field)
            pairs = pairs if isinstance(pairs, list | tuple) else ()
            names += [codec for pair in pairs if isinstance(pair, str) for codec in pair.split("/")]
        plugin_names = [
            plugin_name for name in names if isinstance(name, str) for plugin_name in name.partition(":")[0].split("+")
        ]
        for name in dict.fromkeys([*plugin_names, *sections.get("options", {})]):
            find_installed(str(name))


def _with_plugin_options(config: RunConfig, of_a_folder: bool) -> RunConfig:
    """The config with the options of plugins checked by their own models. Where the config uses a plugin but gives it no
    options, the plugin's defaults are filled in."""
    options_given = dict(config.options.model_extra or {})
    names = [name for _, name in config.named() if name in OPTIONS]
    checked = {}
    for name in dict.fromkeys([*options_given, *names]):
        if name in OPTIONS:
            checked[name] = _plugin_options(name, OPTIONS[name], options_given.get(name, {}))
        elif not of_a_folder or not isinstance(options_given[name], Mapping):
            raise InputError(unknown_field("config", f"options.{name}", config_fields()))
    if not checked:
        return config
    return config.model_copy(update={"options": config.options.model_copy(update=checked)})


def _plugin_options(name: str, model: type[BaseModel], value: Any) -> BaseModel:
    path = f"options.{name}"
    value = value.model_dump() if isinstance(value, BaseModel) else value
    if not isinstance(value, Mapping):
        raise InputError(
            f"config {path} is {reprlib.repr(value)} but it is a section; set its fields: {fields_of(path)}"
        )
    spellings = {spelling for field, info in model.model_fields.items() for spelling in (field, info.alias)}
    if model.model_config.get("extra") != "allow" and (unknown := [field for field in value if field not in spellings]):
        raise InputError(unknown_field("config", f"{path}.{unknown[0]}", config_fields()))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise InputError(explain(error, value, model, "config", f"{path}.", config_fields())) from None
