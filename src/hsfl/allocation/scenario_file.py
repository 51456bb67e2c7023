"""The shape of a scenario file, checked by pydantic, and its mistakes in one line each."""

import difflib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0, strict=True)]


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
    batch_size: Annotated[int, Field(gt=0, strict=True)]
    tau_s: Positive | None = None
    sharing: Literal["exclusive", "bandwidth"] = "exclusive"
    cost: _Cost
    clients: _Clients
    min_cut: Whole = 1
    servers: _Servers
    channel: _Channel


COST_FIELDS = tuple(_Cost.model_fields)


def one_line(error: ValidationError) -> str:
    """The first problem of a file: the field, the value, the way out."""
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    name = _name(first["loc"])
    kind, value = first["type"], first.get("input")
    if kind == "missing":
        return f"{name} is missing; add it to the scenario"
    if kind == "extra_forbidden":
        known = _known_keys(first["loc"][:-1])
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1, cutoff=0.0)
        return f"{name} is not a field of a scenario; did you mean {near[0]}?"
    wanted = first["msg"].removeprefix("Input should be ").removeprefix("a valid ").removeprefix("Input should have ")
    return f"{name} is {_short(value)}; it must be {wanted}"


def _known_keys(path: tuple[int | str, ...]) -> list[str]:
    parts: dict[tuple[int | str, ...], type[_Part]] = {
        (): ScenarioFile,
        ("cost",): _Cost,
        ("clients",): _Clients,
        ("servers",): _Servers,
        ("channel",): _Channel,
    }
    return list(parts[path].model_fields)


def _name(path: tuple[int | str, ...]) -> str:
    """clients.cpu_hz[3]; the names of alternatives that pydantic adds are left out."""
    words = ""
    for part in path:
        if isinstance(part, int):
            words += f"[{part}]"
        elif not part.startswith(("constrained", "list[", "float")):
            words += f".{part}" if words else part
    return words


def _short(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    return text if len(text) < 60 else text[:57] + "..."
