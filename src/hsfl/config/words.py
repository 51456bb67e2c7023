"""What is wrong with a setting, in one line: the field, its value, the way out."""

import difflib
import reprlib
from collections.abc import Mapping
from typing import Any, cast, get_args

from pydantic import BaseModel

from hsfl import plugins
from hsfl.config.sections import RunConfig


def explain(
    problem: Mapping[str, Any], tree: Mapping[str, Any], root: type[BaseModel] = RunConfig, prefix: str = ""
) -> str:
    """What is wrong with a setting, in one line: the field, its value, the way out.

    problem: one of pydantic's errors. tree: the settings that were read. root, prefix: the model that refused them, and where
        its fields stand in the config.
    """
    path, field, value = _locate(problem["loc"], tree, root)
    path = (prefix + path).removesuffix(".")
    if problem["type"] == "extra_forbidden":
        return unknown_field(path)
    if problem["type"] == "model_type":
        return f"config {path} is {reprlib.repr(value)} but it is a section; set its fields: {fields_of(path)}"
    if problem["type"] == "missing" and value is None:
        return f"config {path} is not given; set it"
    if problem["type"] == "quantity":
        return f"config {path} is {reprlib.repr(value)}; {problem['msg']}"
    if problem["type"] in ("value_error", "assertion_error"):
        return f"config {path} is {reprlib.repr(value)}: {problem['msg'].partition(', ')[2]}"
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


def _locate(loc: tuple[int | str, ...], tree: Mapping[str, Any], root: type[BaseModel]) -> tuple[str, Any, Any]:
    """The field's dotted name, its declaration (None if the field is unknown) and its value in the tree.

    Pydantic goes on below the field, with a list's positions and a union's branches; people think in fields.
    """
    section: Any = root
    names: list[str] = []
    field, value = None, cast(Any, tree)
    for part in loc:
        if not _is_section(section):
            break
        names.append(str(part))
        field, value = section.model_fields.get(str(part)), value.get(str(part)) if isinstance(value, Mapping) else None
        section = field.annotation if field is not None else None
    return ".".join(names), field, value


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _field_names() -> list[str]:
    """The dotted names of all fields, the options of plugins included."""
    own = [name for key, model in plugins.OPTIONS.items() for name in _names_below(model, f"options.{key}.")]
    return _names_below(RunConfig, "") + own


def _names_below(section: Any, prefix: str) -> list[str]:
    names = []
    for name, field in section.model_fields.items():
        inner = field.annotation
        names += _names_below(inner, f"{prefix}{name}.") if _is_section(inner) else [f"{prefix}{name}"]
    return names


def fields_of(section: str) -> str:
    """The dotted names of the fields of a section, joined by commas."""
    return ", ".join(name for name in _field_names() if name.startswith(f"{section}."))


def unknown_field(path: str) -> str:
    """What to say of a field that does not exist."""
    return f"unknown config field {path!r}; {suggest(path)}"


def suggest(unknown: str) -> str:
    """A hint for an unknown field: the same name in another section, else a similar name in this section, else all names here."""
    section, _, last = unknown.rpartition(".")
    every, inside = _field_names(), f"{section}." if section else ""
    beside = dict.fromkeys(name.removeprefix(inside).partition(".")[0] for name in every if name.startswith(inside))
    same = [name for name in every if name.rpartition(".")[2] == last]
    near = same or [inside + name for name in difflib.get_close_matches(last, beside, 1, 0.6)]
    return f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(inside + name for name in beside)}"
