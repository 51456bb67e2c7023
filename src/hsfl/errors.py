"""The error that people see (`InputError`), names looked up with a hint (`known_name`), the command that installs what is missing
(`install_extra`), and pydantic's errors in one line each.

Messages speak of options of the command line (`--out`). For a caller from Python `in_arguments` says the same with arguments (`out=`).

This file imports nothing but Python's own library, so that every other file may import it.
"""

import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, get_args, get_origin

P = ParamSpec("P")
R = TypeVar("R")

Location = tuple[
    int | str, ...
]  # where pydantic found a mistake: names of fields, positions in lists, branches of unions


class InputError(ValueError):
    """Wrong input. The message names the thing, shows the value and offers the way out; commands print it alone."""


class DataMissing(InputError):
    """A data set is not on this machine."""


def requirements(extra: str = "") -> list[str]:
    """The packages that hsfl needs, such as numba>=0.60, or those of an extra; none where hsfl was not installed by pip."""
    from importlib import metadata  # here, because it takes a tenth of a second to load

    try:
        lines = metadata.requires("hsfl") or []
    except metadata.PackageNotFoundError:
        return []
    marker = f"extra=='{extra}'" if extra else ""
    parts = (line.partition(";") for line in lines)
    return [name.strip() for name, _, when in parts if when.replace(" ", "").replace('"', "'") == marker]


def install_extra(extra: str) -> str:
    """The command that installs an extra. It names packages: hsfl is on no index, and its checkout may be elsewhere."""
    return (
        pip_install(requirements(extra)) if requirements(extra) else f"pip install '.[{extra}]' in a checkout of hsfl"
    )


def pip_install(packages: Iterable[str]) -> str:
    """The command that installs some requirements, such as numba>=0.60, quoted so that every shell takes them."""
    return " ".join(["pip install", *(f'"{package}"' for package in packages)])


# --- for callers from Python

ARGUMENTS = {  # what a call from Python has in place of an option
    "--batch-size": "batch_size=",
    "--classes": "num_classes=",
    "--cost": "cost=",
    "--data-dir": "data.dir",  # a setting, and an argument of hsfl.evaluate
    "--framework": "framework=",
    "--input": "input_shape=",
    "--jobs": "jobs=",
    "--metric": "metrics=",
    "--out": "out=",
    "--plan": "plan=",
    "--plan-only": "plan_only=True",
    "--plugin": "plugins=",
    "--resume": "resume=True",
    "--rounds": "rounds=",
    "--samples-per-client": "samples_per_client=",
    "--seeds": "seeds=",
    "--set": "settings=",
    "--target": "target=",
    "--train-once": "train_once=True",
    "--which": "which=",
    "-f": "frameworks=",
}
# An option with what joins it to its value: `=`, or a space before a name in capitals, a quoted value or the name of a framework.
_OPTION = re.compile(r"""(?<![\w-])(--[a-z]+(?:-[a-z]+)*)(=| (?=[A-Z'"\[]))?|(?<![\w-])(-f)\b( (?=\w))?""")


def in_arguments(text: str) -> str:
    """The text with the arguments of a call in place of options: `choose another --out` becomes `choose another out=`."""

    def argument(match: re.Match[str]) -> str:
        option, joint = match[1] or match[3], match[2] or match[4] or ""
        argument_name = ARGUMENTS.get(option, option)
        if argument_name.endswith("="):
            return argument_name[:-1] if text.startswith(" is ", match.end()) else argument_name
        return argument_name + joint

    return _OPTION.sub(argument, text).replace("the same command", "the same call")


def speaks_of_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """The function for callers from Python: its errors speak of arguments instead of options."""

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        try:
            return function(*args, **named)
        except InputError as error:
            error.args = (in_arguments(str(error)),)
            raise

    return call


# --- names and fields


def known_name(kind: str, name: str, choices: Iterable[str], way_out: str = "") -> str:
    """The name, if it is among the choices; else an error that suggests the nearest, and another way out."""
    choices = list(choices)
    if name not in choices:
        near = get_close_matches(str(name).lower(), choices, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"{kind} {name!r} is unknown; {hint}choose one of {', '.join(choices)}{way_out}")
    return name


def shown_value(value: Any) -> str:
    """A value as an error shows it, shortened where it is long."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no whole number of thousands of digits
        return f"of type {type(value).__name__}, too long to show"


def explain(error: Any, tree: Any, model: Any, noun: str, prefix: str = "", known_fields: Sequence[str] = ()) -> str:
    """The first mistake in some settings, in one line: the field, its value, the way out.

    error: pydantic's ValidationError. tree: the settings that were read. model: the pydantic model that refused them.
    noun: the settings in one word, which begins the line. prefix: where the model's fields stand in the settings.
    known_fields: the dotted names of all fields; those of the model unless given.
    """
    problem = first_problem(error)
    name, value, field = _locate(problem["loc"], tree, model)
    name = (prefix + name).removesuffix(".")
    known_fields = known_fields or field_names(model)
    if problem["type"] == "extra_forbidden":
        return unknown_field(noun, name, known_fields)
    if problem["type"] == "model_type":
        fields = ", ".join(field for field in known_fields if field.startswith(f"{name}."))
        return f"{noun} {name} is {shown_value(value)} but it is a section; set its fields: {fields}"
    if problem["type"] == "missing" and value is None:
        return f"{noun} {name} is missing; set it"
    clause, near = _clause(problem, "give", field), _nearest_word(value, field)
    if near is not None:
        clause = f"; did you mean {near}? {clause.removeprefix('; ')}"
    return f"{noun} {name} is {shown_value(value)}{clause}"


def _nearest_word(value: Any, field: Any) -> str | None:
    """Of the words that a field takes, the one that a text resembles."""
    words = _words_of(field.annotation) if field is not None else []
    near = get_close_matches(value.lower(), words, n=1) if isinstance(value, str) else []
    return near[0] if near else None


def _words_of(annotation: Any) -> list[str]:
    """The texts of all `Literal`s in a type."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [word for word in inner if isinstance(word, str)]
    return [word for part in inner if not isinstance(part, str) for word in _words_of(part)]


def first_problem(error: Any) -> dict[str, Any]:
    """The mistake to tell first: an unknown field, which may be another's misspelt name, else the first mistake.

    Where a field takes a number or a list, pydantic complains of a wrong list twice; that it is no number is not the mistake.
    """
    problems = error.errors(include_url=False)
    above = {problem["loc"][:depth] for problem in problems for depth in range(len(problem["loc"]) - 1)}

    def rank(problem: Mapping[str, Any]) -> tuple[bool, bool]:
        is_other_branch = isinstance(problem["input"], list) and problem["loc"][:-1] in above
        return problem["type"] != "extra_forbidden", is_other_branch

    return min(problems, key=rank)


def explain_field(problem: Mapping[str, Any], show: bool = True) -> str:
    """What is wrong with JSON that is read as a record: the field, its value, what it should be; to follow the JSON's name.

    show: whether the value may be told.
    """
    if problem["type"] == "json_invalid":
        return f" cannot be read as JSON ({problem['msg'].removeprefix('Invalid JSON: ')})"
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in problem["loc"]).removeprefix(".")
    if problem["type"] == "missing":
        return f": {name} is missing"
    value = shown_value(problem["input"]) if show else "wrong"
    clause = _clause(problem, "it should be")
    return f": {name or 'the whole'} is {value}{clause}" if name or not clause.startswith(": ") else clause


def _clause(problem: Mapping[str, Any], should: str, field: Any = None) -> str:
    """What a field should be, to follow its value. field: its declaration, whose description takes the place of pydantic's account."""
    if problem["type"] == "quantity":  # a sentence that names a way out
        return f"; {problem['msg']}"
    if problem["type"] in ("value_error", "assertion_error"):
        return f": {problem['msg'].partition(', ')[2]}"
    expected = field.description if field is not None and field.description else _expected(problem)
    if expected and field is not None and type(None) in get_args(field.annotation):
        expected += " or null"
    return f"; {should} {expected}" if expected else f": {problem['msg']}"


def _expected(problem: Mapping[str, Any]) -> str:
    """What a field takes, in words, from pydantic's name for the problem: int_parsing, literal_error, less_than...; empty if unclear."""
    kinds = {
        "int": "a whole number",
        "float": "a number",
        "finite": "a finite number",
        "bool": "true or false",
        "dict": "names and values",
    }
    ranges = {
        "greater_than_equal": "a number of at least {ge}",
        "greater_than": "a number above {gt}",
        "less_than_equal": "a number of at most {le}",
        "less_than": "a number below {lt}",
        "literal_error": "{expected}",
        "string_type": "text",
    }
    kind, message = problem["type"], problem["msg"]
    if kind in ranges:
        return ranges[kind].format(**problem.get("ctx", {}))
    if kind.partition("_")[0] in kinds:
        return kinds[kind.partition("_")[0]]
    expectation = message.removeprefix("Input should be ").replace("a valid ", "a ")
    return expectation if expectation != message else ""


def _locate(loc: Location, tree: Any, model: Any) -> tuple[str, Any, Any]:
    """The field's dotted name, its value in the tree, and its declaration, None where the value is only a part of the field's.

    A field with a description is told as a whole. In other fields the position in a list is named; branches of a union are not.
    """
    name, field = "", None
    for step in loc:
        inside = isinstance(tree, Mapping) and step in tree
        if isinstance(step, int):
            name, field = f"{name}[{step}]", None
            tree = tree[step] if isinstance(tree, Sequence) and step < len(tree) else None
        elif inside or hasattr(model, "model_fields"):
            name = f"{name}.{step}" if name else step
            field = getattr(model, "model_fields", {}).get(step)
            tree, model = tree[step] if inside else None, field.annotation if field is not None else None
        if field is not None and field.description:
            break
    return name, tree, field


def field_names(model: Any, prefix: str = "") -> list[str]:
    """The dotted names of all fields of a pydantic model and of the models in it."""
    names = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        names += field_names(inner, f"{prefix}{name}.") if hasattr(inner, "model_fields") else [f"{prefix}{name}"]
    return names


def unknown_field(noun: str, name: str, known_fields: Iterable[str]) -> str:
    """What to say of a field that does not exist. noun: whose field, such as config."""
    return f"unknown {noun} field {name!r}; {suggest(name, known_fields)}"


def suggest(unknown: str, known_fields: Iterable[str]) -> str:
    """A hint for an unknown field: the same name in another section, else a similar name in this section, else all names here."""
    section, _, last = unknown.rpartition(".")
    inside, known_fields = f"{section}." if section else "", list(known_fields)
    beside = dict.fromkeys(
        name.removeprefix(inside).partition(".")[0] for name in known_fields if name.startswith(inside)
    )
    same = [name for name in known_fields if name.rpartition(".")[2] == last]
    near = same or [inside + name for name in get_close_matches(last, beside, 1, 0.6)]
    return f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(inside + name for name in beside)}"
