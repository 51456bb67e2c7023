"""The scenario of a round: all its numbers, checked once at the border, then a frozen record of arrays.

Legend: K clients, I subchannels, C cuts (num_units + 1). `scenario_file` has the shape of the JSON file; RANGES has, field by field,
the numbers that the solver can compute with.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from hsfl.allocation.scenario_file import COST_FIELDS, ScenarioFile, unique
from hsfl.errors import InputError, explain, shown_value

Array = np.ndarray
# What the solver can compute with, by field: far beyond any machine or radio, far from overflow and lost digits. Within
# these, a bound is right to 1e-9 of itself, whatever the ratios (tests/laws/test_no_false_bound.py).
RANGES = {
    "batch_size": (1, 1e9),
    "tau_s": (1e-12, 1e30),
    "cost.client_flops": (1e-9, 1e18),  # costs may be 0, too
    "cost.server_flops": (1e-9, 1e18),
    "cost.smashed_bits": (1e-9, 1e15),
    "cost.gradient_bits": (1e-9, 1e15),
    "cost.model_bits": (1e-9, 1e15),
    "cost.model_down_bits": (1e-9, 1e15),
    "clients.cpu_hz": (1e3, 1e24),
    "clients.flops_per_cycle": (1e-3, 1e9),
    "clients.max_power_w": (1e-9, 1e12),
    "clients.num_batches": (1e-6, 1e12),
    "servers.main_hz": (1, 1e24),
    "servers.flops_per_cycle": (1e-3, 1e9),
    "servers.main_power_w": (1e-9, 1e12),
    "servers.edge_power_w": (1e-9, 1e12),
    "channel.subchannel_hz": (1e-3, 1e18),
    "channel.noise_w": (1e-30, 1e12),
    "channel.main_gain": (1e-30, 1e30),
    "channel.edge_gain": (1e-30, 1e30),
}
SIGNAL_TO_NOISE = (1e-12, 1e24)  # of all power on one subchannel; weaker signals lose their digits
FIELD_NAMES = {"clients.flops_per_cycle": "client_flops_per_cycle", "servers.flops_per_cycle": "server_flops_per_cycle"}


@dataclass(frozen=True)
class Scenario:
    """One round. Build it with `Scenario.read` or `from_dict`, or from arrays, and then call `checked`."""

    batch_size: int
    tau_s: float | None
    sharing: str
    client_flops: Array  # [C] of one data sample, forward plus backward
    server_flops: Array  # [C]
    smashed_bits: Array  # [C]
    gradient_bits: Array  # [C]
    model_bits: Array  # [C] of all the client's units, once a round
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
    model_down_bits: Array | None = None  # [C] of the model's download, where it differs from model_bits
    legal_rows: Array | None = (
        None  # [K, C] bool: the rows that each client may take, where they are not the cuts from min_cut to max_cut
    )

    @property
    def num_clients(self) -> int:
        return len(self.cpu_hz)

    @property
    def num_subchannels(self) -> int:
        return self.main_gain.shape[1]

    @property
    def down_bits(self) -> Array:
        """What comes down to a client once a round, [C]."""
        return self.model_bits if self.model_down_bits is None else self.model_down_bits

    @property
    def num_cuts(self) -> int:
        return len(self.model_bits)

    @staticmethod
    def read(path: str | Path) -> "Scenario":
        """A scenario from its JSON file."""
        try:
            text = Path(path).read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InputError(f"scenario {path} cannot be read ({reason}); give the path of a JSON file") from None
        try:
            data = json.loads(text, object_pairs_hook=unique)
        except InputError:
            raise
        except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError
            raise InputError(f"scenario {path} is not JSON ({error}); correct it there") from None
        return Scenario.from_dict(data)

    @staticmethod
    def from_dict(data: Any) -> "Scenario":
        """A scenario from the content of its file."""
        if not isinstance(data, dict):
            raise InputError(f"scenario is {shown_value(data)}; it must be an object with cost, clients, ...")
        try:
            file = ScenarioFile.model_validate(data)
        except ValidationError as error:
            raise InputError(explain(error, data, ScenarioFile, "scenario")) from None
        clients, cost, servers, channel = file.clients, file.cost, file.servers, file.channel
        num_clients = len(clients.cpu_hz)
        legal_rows = None if clients.rows is None else _mask(clients.rows, len(cost.model_bits))
        max_cut = clients.max_cut if legal_rows is None else [int(np.flatnonzero(row).max()) for row in legal_rows]
        if max_cut is None:
            raise InputError("clients.max_cut is missing; give the deepest cut of each client, or clients.rows")
        if clients.rows is not None and clients.max_cut is not None:
            raise InputError(
                "clients.max_cut and clients.rows are both given; rows has all that a client may take, leave max_cut out"
            )
        per_cycle = clients.flops_per_cycle
        scenario = Scenario(
            batch_size=file.batch_size,
            tau_s=file.tau_s,
            sharing=file.sharing,
            **{name: np.array(column, float) for name in COST_FIELDS if (column := getattr(cost, name)) is not None},
            cpu_hz=np.array(clients.cpu_hz, float),
            client_flops_per_cycle=np.array(per_cycle if isinstance(per_cycle, list) else [per_cycle] * num_clients),
            max_power_w=np.array(clients.max_power_w, float),
            max_cut=np.array(max_cut, int),
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
            legal_rows=legal_rows,
        )
        return scenario.checked()

    def to_dict(self) -> dict[str, Any]:
        """The content of the scenario's file."""
        return {
            "batch_size": self.batch_size,
            "tau_s": self.tau_s,
            "sharing": self.sharing,
            "cost": {name: c.tolist() for name in COST_FIELDS if (c := getattr(self, name)) is not None},
            "clients": {
                "cpu_hz": self.cpu_hz.tolist(),
                "flops_per_cycle": self.client_flops_per_cycle.tolist(),
                "max_power_w": self.max_power_w.tolist(),
                **self._may_take(),
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

    def _may_take(self) -> dict[str, Any]:
        """What clients may take, as the file says it."""
        if self.legal_rows is None:
            return {"max_cut": self.max_cut.tolist()}
        return {"rows": [np.flatnonzero(row).tolist() for row in self.legal_rows]}

    def checked(self) -> "Scenario":
        """The scenario with plain arrays, or an error: every length must agree, every number be usable, every client have a cut."""
        _check_lengths(self)
        _check_numbers(self)
        _check_signals(self)
        _check_cuts(self)
        if self.sharing == "exclusive" and self.num_clients > self.num_subchannels:
            raise InputError(
                f"{self.num_clients} clients share {self.num_subchannels} subchannels (channel.main_gain) but sharing "
                'is "exclusive"; set sharing to "bandwidth" or give more subchannels'
            )
        return self._plain()

    def _plain(self) -> "Scenario":
        """The scenario with arrays that lie in memory in order and may be written to: numba would compile everything again for others."""
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        reordered: dict[str, Any] = {
            name: np.array(value, order="C") for name, value in arrays.items() if not value.flags.carray
        }
        return replace(self, **reordered) if reordered else self

    @property
    def rows(self) -> Array:
        """The rows of the cost table that C1 allows each client, [K, C] bool: the cuts from min_cut to the largest that it can hold, or the
        rows that the scenario names."""
        return (
            self.legal_rows if self.legal_rows is not None else rows_between(self.min_cut, self.max_cut, self.num_cuts)
        )

    def check_cuts(self, cuts: Any) -> Array:
        """Cuts that a user gave, as an array [K], or an error that names the client."""
        try:
            array = np.asarray(cuts)
            valid = array.ndim == 1 and np.issubdtype(array.dtype, np.integer)
        except ValueError:
            valid = False
        if not valid:
            raise InputError(f"cuts is {cuts!r}; give one whole number for each client, such as 3,4,3")
        if len(array) != self.num_clients:
            raise InputError(f"cuts has {len(array)} entries for {self.num_clients} clients; give one for each")
        bad = ~self.may_take(array)
        if bad.any():
            k = int(bad.argmax())
            can_take = f"{self.min_cut} to {self.max_cut[k]} (min_cut, clients.max_cut); choose a cut in this range"
            if self.legal_rows is not None:
                can_take = f"{np.flatnonzero(self.legal_rows[k]).tolist()} (clients.rows); choose one of these rows"
            raise InputError(f"cuts[{k}] is {array[k]} but client {k} can take {can_take}")
        return array.astype(np.int64)

    def may_take(self, cuts: Array) -> Array:
        """Whether each client may take its row of cuts [K], [K] bool."""
        inside = (cuts >= 0) & (cuts < self.num_cuts)
        return inside & self.rows[np.arange(len(cuts)), np.where(inside, cuts, 0)]


def rows_between(min_cut: int, max_cut: Array, num_cuts: int) -> Array:
    """The rows [K, C] of clients that may take every cut from min_cut to their max_cut [K]."""
    cuts = np.arange(num_cuts)
    return (cuts >= min_cut) & (cuts <= max_cut[:, None])


def _table(name: str, rows: list[list[float]]) -> Array:
    for k, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise InputError(f"{name}[{k}] has {len(row)} entries but {name}[0] has {len(rows[0])}; rows must agree")
    return np.array(rows, float).reshape(len(rows), len(rows[0]) if rows else 0)


def _mask(rows: list[list[int]], num_cuts: int) -> Array:
    """Lists of rows as [K, C] bool."""
    mask = np.zeros((len(rows), num_cuts), bool)
    for k, row in enumerate(rows):
        if not row or max(row) >= num_cuts:
            raise InputError(
                f"clients.rows[{k}] is {row}; give rows of the cost table, 0 to {num_cuts - 1}, at least one"
            )
        mask[k, row] = True
    return mask


def _check_lengths(s: Scenario) -> None:
    if s.num_clients == 0:
        raise InputError("clients.cpu_hz is empty; give at least one client")
    if s.num_cuts < 2:
        raise InputError(
            f"cost.model_bits has {s.num_cuts} entries; give one for each cut, from 0 to the number of units"
        )
    if s.legal_rows is not None and s.legal_rows.shape != (s.num_clients, s.num_cuts):
        raise InputError(
            f"clients.rows has {len(s.legal_rows)} entries but clients.cpu_hz has {s.num_clients}; give one for each client"
        )
    file_names = {"client_flops_per_cycle": "flops_per_cycle"}
    for field in ("max_power_w", "max_cut", "num_batches", "client_flops_per_cycle"):
        size = len(getattr(s, field))
        if size != s.num_clients:
            raise InputError(
                f"clients.{file_names.get(field, field)} has {size} entries but clients.cpu_hz has {s.num_clients}; "
                "give one for each client"
            )
    for field in COST_FIELDS:
        size = s.num_cuts if getattr(s, field) is None else len(getattr(s, field))
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
    """An error where a number is outside of its range, also in records that were built from arrays and not from a file."""
    for name in RANGES:
        value = getattr(s, FIELD_NAMES.get(name, name.rpartition(".")[2]))
        if value is not None:
            _check_range(name, value)


def _check_range(name: str, number: Any) -> None:
    """An error where a number of the field `name`, or one of an array, is outside of the field's range."""
    value, (low, high), zero_allowed = _floats(number), RANGES[name], name.startswith("cost.")
    good = (value >= low) & (value <= high)
    bad = np.argwhere(~(good | (value == 0.0) if zero_allowed else good))
    if len(bad):
        where, interval = "".join(f"[{i}]" for i in bad[0]), f"from {low:g} to {high:g}"
        wanted = f"0, or {interval}" if zero_allowed else interval
        raise InputError(f"{name}{where} is {float(value[tuple(bad[0])])}; it must be {wanted}")


def _floats(value: Any) -> Array:
    try:
        return np.asarray(value, float)
    except OverflowError:  # a whole number of hundreds of digits
        return np.array(np.inf)


def _check_signals(s: Scenario) -> None:
    """An error where power times gain over noise, from which every rate is computed, is out of range."""
    low, high = SIGNAL_TO_NOISE
    for name, gain in (("main_gain", s.main_gain), ("edge_gain", s.edge_gain)):
        server_w = s.main_power_w if name == "main_gain" else s.edge_power_w
        for power_w in (s.max_power_w[:, None], server_w):
            signal = power_w * gain / s.noise_w
            bad = np.argwhere((signal < low) | (signal > high))
            if len(bad):
                k, i = bad[0]
                raise InputError(
                    f"channel.{name}[{k}][{i}] is {gain[k, i]:g}: power times gain is {signal[k, i]:.3g} of "
                    f"channel.noise_w, beyond {low:g} to {high:g}; correct the gain, the noise or the power"
                )


def _check_cuts(s: Scenario) -> None:
    if s.legal_rows is not None:
        return  # every client has a row
    deepest = s.num_cuts - 1
    if s.min_cut > deepest:
        raise InputError(f"min_cut is {s.min_cut} but cost has cuts 0 to {deepest}; lower min_cut")
    max_cut = np.asarray(s.max_cut)
    bad = (max_cut > deepest) | (max_cut < s.min_cut)
    if not bad.any():
        return
    k = int(bad.argmax())
    if max_cut[k] > deepest:
        raise InputError(
            f"clients.max_cut[{k}] is {max_cut[k]} but cost has cuts 0 to {deepest}; lower it or extend the cost table"
        )
    raise InputError(
        f"clients.max_cut[{k}] is {max_cut[k]} but min_cut is {s.min_cut}, so no cut fits client {k}; "
        "raise its max_cut, lower min_cut or leave the client out"
    )
