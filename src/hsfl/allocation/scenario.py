"""The scenario file: one round in explicit numbers, checked once at the border, then a frozen record of arrays.

Legend: K clients, I subchannels, C cuts (num_units + 1).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from hsfl.allocation.scenario_file import COST_FIELDS, ScenarioFile, one_line
from hsfl.errors import InputError

Array = np.ndarray


@dataclass(frozen=True)
class Scenario:
    """One round. Build it with `Scenario.read`, `from_dict`, or from arrays and `checked`."""

    batch_size: int
    tau_s: float | None
    sharing: str
    client_flops: Array  # [C] per sample, forward plus backward
    server_flops: Array  # [C]
    smashed_bits: Array  # [C]
    gradient_bits: Array  # [C]
    model_bits: Array  # [C] whole
    cpu_hz: Array  # [K]
    client_flops_per_cycle: Array  # [K]
    max_power_w: Array  # [K]
    max_cut: Array  # [K] int
    num_batches: Array  # [K]
    min_cut: int
    main_hz: float
    server_flops_per_cycle: float
    main_power_w: float
    edge_power_w: float
    subchannel_hz: float
    noise_w: float
    main_gain: Array  # [K, I]
    edge_gain: Array  # [K, I]

    @property
    def num_clients(self) -> int:
        return len(self.cpu_hz)

    @property
    def num_subchannels(self) -> int:
        return self.main_gain.shape[1]

    @property
    def num_cuts(self) -> int:
        return len(self.model_bits)

    @staticmethod
    def read(path: str | Path) -> "Scenario":
        """A scenario from its JSON file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InputError(f"scenario {path} cannot be read ({reason}); give the path of a JSON file") from None
        try:
            data = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"scenario {path} is not JSON ({error}); correct it there") from None
        return Scenario.from_dict(data)

    @staticmethod
    def from_dict(data: Any) -> "Scenario":
        """A scenario from the content of its file."""
        if not isinstance(data, dict):
            raise InputError(f"scenario is a {type(data).__name__}; it must be an object with cost, clients, ...")
        try:
            file = ScenarioFile.model_validate(data)
        except ValidationError as error:
            raise InputError(one_line(error)) from None
        clients, cost, servers, channel = file.clients, file.cost, file.servers, file.channel
        num_clients = len(clients.cpu_hz)
        per_cycle = clients.flops_per_cycle
        scenario = Scenario(
            batch_size=file.batch_size,
            tau_s=file.tau_s,
            sharing=file.sharing,
            **{name: np.array(getattr(cost, name), float) for name in COST_FIELDS},
            cpu_hz=np.array(clients.cpu_hz, float),
            client_flops_per_cycle=np.array(per_cycle if isinstance(per_cycle, list) else [per_cycle] * num_clients),
            max_power_w=np.array(clients.max_power_w, float),
            max_cut=np.array(clients.max_cut, int),
            num_batches=np.array(clients.num_batches, float),
            min_cut=file.min_cut,
            main_hz=servers.main_hz,
            server_flops_per_cycle=servers.flops_per_cycle,
            main_power_w=servers.main_power_w,
            edge_power_w=servers.edge_power_w,
            subchannel_hz=channel.subchannel_hz,
            noise_w=channel.noise_w,
            main_gain=_table("channel.main_gain", channel.main_gain),
            edge_gain=_table("channel.edge_gain", channel.edge_gain),
        )
        return scenario.checked()

    def to_dict(self) -> dict[str, Any]:
        """The content of the scenario's file."""
        return {
            "batch_size": self.batch_size,
            "tau_s": self.tau_s,
            "sharing": self.sharing,
            "cost": {name: getattr(self, name).tolist() for name in COST_FIELDS},
            "clients": {
                "cpu_hz": self.cpu_hz.tolist(),
                "flops_per_cycle": self.client_flops_per_cycle.tolist(),
                "max_power_w": self.max_power_w.tolist(),
                "max_cut": self.max_cut.tolist(),
                "num_batches": self.num_batches.tolist(),
            },
            "min_cut": self.min_cut,
            "servers": {
                "main_hz": self.main_hz,
                "flops_per_cycle": self.server_flops_per_cycle,
                "main_power_w": self.main_power_w,
                "edge_power_w": self.edge_power_w,
            },
            "channel": {
                "subchannel_hz": self.subchannel_hz,
                "noise_w": self.noise_w,
                "main_gain": self.main_gain.tolist(),
                "edge_gain": self.edge_gain.tolist(),
            },
        }

    def checked(self) -> "Scenario":
        """Itself, where every length agrees, every number is usable and a cut exists for every client."""
        _check_lengths(self)
        _check_numbers(self)
        _check_cuts(self)
        if self.sharing == "exclusive" and self.num_clients > self.num_subchannels:
            raise InputError(
                f"{self.num_clients} clients share {self.num_subchannels} subchannels (channel.main_gain) but sharing "
                'is "exclusive"; set sharing to "bandwidth" or give more subchannels'
            )
        return self

    def feasible_cuts(self, client: int) -> Array:
        """C1: from min_cut to what the client can hold."""
        return np.arange(self.min_cut, self.max_cut[client] + 1)

    def check_cuts(self, cuts: Any) -> Array:
        """Cuts [K] given by someone, or an error that names the client."""
        try:
            array = np.asarray(cuts)
            valid = array.ndim == 1 and np.issubdtype(array.dtype, np.integer)
        except ValueError:
            valid = False
        if not valid:
            raise InputError(f"cuts is {cuts!r}; give one whole number for each client, such as 3,4,3")
        if len(array) != self.num_clients:
            raise InputError(f"cuts has {len(array)} entries for {self.num_clients} clients; give one for each")
        for k, cut in enumerate(array):
            if not self.min_cut <= cut <= self.max_cut[k]:
                raise InputError(
                    f"cuts[{k}] is {cut} but client {k} can take {self.min_cut} to {self.max_cut[k]} "
                    "(min_cut, clients.max_cut); choose one of those"
                )
        return array.astype(np.int64)


def _table(name: str, rows: list[list[float]]) -> Array:
    for k, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise InputError(f"{name}[{k}] has {len(row)} entries but {name}[0] has {len(rows[0])}; rows must agree")
    return np.array(rows, float).reshape(len(rows), len(rows[0]) if rows else 0)


def _check_lengths(s: Scenario) -> None:
    if s.num_clients == 0:
        raise InputError("clients.cpu_hz is empty; give at least one client")
    if s.num_cuts == 0:
        raise InputError("cost.model_bits is empty; give one number for each cut")
    by_name = {"client_flops_per_cycle": "flops_per_cycle"}
    for field in ("max_power_w", "max_cut", "num_batches", "client_flops_per_cycle"):
        size = len(getattr(s, field))
        if size != s.num_clients:
            raise InputError(
                f"clients.{by_name.get(field, field)} has {size} entries but clients.cpu_hz has {s.num_clients}; "
                "give one for each client"
            )
    for field in COST_FIELDS:
        size = len(getattr(s, field))
        if size != s.num_cuts:
            raise InputError(f"cost.{field} has {size} entries but cost.model_bits has {s.num_cuts}; one for each cut")
    for field in ("main_gain", "edge_gain"):
        shape = getattr(s, field).shape
        if len(shape) != 2 or shape[0] != s.num_clients:
            raise InputError(f"channel.{field} has {shape[0]} rows for {s.num_clients} clients; give one for each")
        if shape[1] == 0:
            raise InputError(f"channel.{field} has no subchannels; give at least one gain for each client")
    if s.main_gain.shape != s.edge_gain.shape:
        raise InputError(
            f"channel.edge_gain has {s.edge_gain.shape[1]} subchannels but channel.main_gain has "
            f"{s.num_subchannels}; they are the same subchannels, so give the same number"
        )


def _check_numbers(s: Scenario) -> None:
    """What pydantic checks for a file, for records built from arrays."""
    positive = {
        "clients.cpu_hz": s.cpu_hz,
        "clients.flops_per_cycle": s.client_flops_per_cycle,
        "clients.max_power_w": s.max_power_w,
        "clients.num_batches": s.num_batches,
        "servers.main_hz": s.main_hz,
        "servers.flops_per_cycle": s.server_flops_per_cycle,
        "servers.main_power_w": s.main_power_w,
        "servers.edge_power_w": s.edge_power_w,
        "channel.subchannel_hz": s.subchannel_hz,
        "channel.noise_w": s.noise_w,
        "channel.main_gain": s.main_gain,
        "channel.edge_gain": s.edge_gain,
        "batch_size": s.batch_size,
    }
    for name, value in positive.items():
        _check_sign(name, np.asarray(value, float), lambda x: x > 0, "a positive number")
    for field in COST_FIELDS:
        _check_sign(f"cost.{field}", getattr(s, field), lambda x: x >= 0, "zero or more")
    if s.tau_s is not None:
        _check_sign("tau_s", np.asarray(s.tau_s, float), lambda x: x > 0, "a positive number, or null for no limit")


def _check_sign(name: str, value: Array, test: Any, wanted: str) -> None:
    bad = np.argwhere(~(np.isfinite(value) & test(value)))
    if len(bad):
        where = "".join(f"[{i}]" for i in bad[0])
        raise InputError(f"{name}{where} is {float(value[tuple(bad[0])])}; it must be {wanted}")


def _check_cuts(s: Scenario) -> None:
    deepest = s.num_cuts - 1
    if s.min_cut > deepest:
        raise InputError(f"min_cut is {s.min_cut} but cost has cuts 0 to {deepest}; lower min_cut")
    for k, cut in enumerate(s.max_cut):
        if cut > deepest:
            raise InputError(
                f"clients.max_cut[{k}] is {cut} but cost has cuts 0 to {deepest}; lower it or extend the cost table"
            )
        if cut < s.min_cut:
            raise InputError(
                f"clients.max_cut[{k}] is {cut} but min_cut is {s.min_cut}, so no cut fits client {k}; "
                "raise its max_cut, lower min_cut or leave the client out"
            )
