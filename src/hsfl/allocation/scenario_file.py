"""The shape of a scenario file, checked by pydantic; `scenario.Scenario.read` makes arrays of it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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
    model_down_bits: list[Amount] | None = None


class _Clients(_Part):
    cpu_hz: list[Positive]
    flops_per_cycle: Positive | list[Positive] = 1.0
    max_power_w: list[Positive]
    max_cut: list[Whole] | None = None
    rows: list[list[Whole]] | None = None
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


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the file, for json.loads; an error where a key is given twice, since the first would be lost."""
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise InputError(f"{key} is given twice in one object of the scenario; keep one of them")
        content[key] = value
    return content
