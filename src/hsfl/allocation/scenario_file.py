"""The shape of a scenario file, checked by pydantic, and the mistakes in it, in one line each."""

import difflib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hsfl.errors import InputError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0, le=10**9, strict=True)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Cost(_Part):
    client_flops: list[Amount]
    server_flops: list[Amount]
    smashed_bits: list[Amount]
    gradient_bits: list[Amount]
    model_bits: list[Amount]


class _Clients(_Part):
    cpu_hz: list[Positive]
    flops_per_cycle: Positive | list[Positive] = 1.0
    max_power_w: list[Positive]
    max_cut: list[Whole]
    num_batches: list[Positive]


class _Servers(_Part):
    main_hz: Positive
    flops_per_cycle: Positive = 1.0
    main_power_w: Positive
    edge_power_w: Positive


class _Channel(_Part):
    subchannel_hz: Positive
    noise_w: Positive
    main_gain: list[list[Positive]]
    edge_gain: list[list[Positive]]


class ScenarioFile(_Part):
    """The content of a scenario file; docs/scenario.md describes every field."""

    batch_size: Annotated[int, Field(gt=0, le=10**9, strict=True)]
    tau_s: Positive | None = None
    sharing: Literal["exclusive", "bandwidth"] = "exclusive"
    cost: _Cost
    clients: _Clients
    min_cut: Whole = 1
    servers: _Servers
    channel: _Channel


COST_FIELDS = tuple(_Cost.model_fields)
_PARTS: dict[tuple[int | str, ...], type[_Part]] = {
    (): ScenarioFile,
    ("cost",): _Cost,
    ("clients",): _Clients,
    ("servers",): _Servers,
    ("channel",): _Channel,
}


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the file, for json.loads; an error where a key is given twice, since the first would be lost."""
    read: dict[str, Any] = {}
    for key, value in pairs:
        if key in read:
            raise InputError(f"{key} is given twice in one object of the scenario; keep one of them")
        read[key] = value
    return read


def one_line(error: ValidationError) -> str:
    """The first mistake in a file: the field, its value, the way out."""
    errors = error.errors()
    errors = [e for e in errors if not _other_choice(e["loc"], e["input"])] or errors
    first = min(errors, key=lambda e: e["type"] != "extra_forbidden")
    name = _name(first["loc"])
    kind, value = first["type"], first.get("input")
    if kind == "missing":
        return f"{name} is missing; add it to the scenario"
    if kind == "extra_forbidden":
        return f"{name} is not a field of a scenario; {_hint(first['loc'])}"
    if kind == "model_type":
        return f"{name} is {described(value)}; it must be an object with {', '.join(_PARTS[first['loc']].model_fields)}"
    wanted = first["msg"].split(", ")[0].removeprefix("Input should be ").replace("a valid integer", "a whole number")
    return f"{name} is {described(value)}; it must be {wanted.replace('a valid ', 'a ')}"


def _other_choice(path: tuple[int | str, ...], value: Any) -> bool:
    """Whether the mistake is that a list is no number, where the file may have a number or a list."""
    return isinstance(value, list) and str(path[-1]).startswith("constrained")


def _hint(path: tuple[int | str, ...]) -> str:
    key, fields = str(path[-1]), list(_PARTS[path[:-1]].model_fields)
    if near := difflib.get_close_matches(key, fields, n=1):
        return f"did you mean {near[0]}?"
    for place, part in _PARTS.items():
        if key in part.model_fields:
            return f"put it into {place[0]}" if place else "put it at the top"
    return f"choose from {', '.join(fields)}"


def _name(path: tuple[int | str, ...]) -> str:
    """The name of a field, such as clients.cpu_hz[3], without the names of alternatives that pydantic adds."""
    words = ""
    for part in path:
        if isinstance(part, int):
            words += f"[{part}]"
        elif not part.startswith(("constrained", "list[", "float")):
            words += f".{part}" if words else part
    return words


def described(value: Any) -> str:
    """A value in the words of JSON, shortened where it is long."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):  # from Python: no JSON, or too many digits to write
        return f"of type {type(value).__name__}"
    return text if len(text) < 60 else text[:57] + "..."
