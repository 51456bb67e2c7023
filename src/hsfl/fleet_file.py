"""Fleet files, TOML or JSON: a `[[device]]` table for each client, and `[main_server]`.

    [[device]]
    name = "ward-1"
    compute = "35 GFLOP/s"   # as hsfl measure finds it; or cpu = "3.6GHz", and flops_per_cycle (1 if left out)
    memory = "16GiB"         # or max_cut = 5; without either, the device holds any cut
    up = "100Mbps"           # to the main server, where links are measured; edge_up and edge_down are the same unless given
    down = "100Mbps"
    delay = "2ms"            # of each message besides its bits, where links are measured; none if left out
    power = "2W"             # where the links are a radio

    [device.profile]         # as hsfl measure finds it: seconds of each unit for a batch, so that a cut's seconds are sums
    model = "resnet18"
    batch_size = 32
    forward_ms = [21.7, 32.1]
    backward_ms = [17.5, 34.6]
    step_ms = 101.0          # of all units in one piece, which a device that holds all of them takes; else their sum
    codecs = ["int8"]        # nanoseconds to encode and to decode a number of a message
    encode_ns = [0.61]
    decode_ns = [0.14]

    [main_server]            # compute or cpu and a profile, as of a device; and the end of a round, where links are measured
    compute = "90 GFLOP/s"
    swap = "1Gbps"           # the link to the edge server, each way; swap_delay = "0.2ms" of a message on it
    average = "12ms"         # to sum what one client trained
    test = "1.5s"            # of a test; checkpoint and open likewise (docs/clock.md)

`read_fleet_file` reads one. `with_device_added` enters a device as hsfl measure does; what stood in the file stays, comments too. Quantities such as
3.6GHz are read by `quantities.parse_quantity`.
"""

import json
import reprlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hsfl.errors import InputError, known_name
from hsfl.files import check_ordinary
from hsfl.quantities import parse_quantity, quantity_text

QUANTITIES = {  # of a device, with its kind
    "compute": "compute", "cpu": "cycles", "memory": "memory", "power": "power",
    "up": "rate", "down": "rate", "edge_up": "rate", "edge_down": "rate", "delay": "seconds",
}  # fmt: skip
DEVICE_FIELDS = ("name", *QUANTITIES, "flops_per_cycle", "max_cut", "profile")
ENDING = {  # of the main server, with its kind and the setting of the network that it gives
    "swap": ("rate", "swap_bps"), "swap_delay": ("seconds", "swap_delay_s"), "open": ("seconds", "open_s"),
    "average": ("seconds", "average_s"), "test": ("seconds", "test_s"), "checkpoint": ("seconds", "checkpoint_s"),
}  # fmt: skip
SERVER_FIELDS = ("compute", "cpu", "flops_per_cycle", "profile", *ENDING)
PROFILE_FIELDS = ("model", "batch_size", "forward_ms", "backward_ms", "step_ms", "codecs", "encode_ns", "decode_ns")
MOST_UNITS, MOST_MS, MOST_CODECS = 10_000, 1e9, 100


@dataclass(frozen=True)
class Profile:
    """Seconds of each unit of a model for a batch, and of codecs, as one device or server was measured."""

    model: str
    batch_size: int
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    step_s: float | None = None  # of all units in one piece; None: their sum
    coding_s: Mapping[str, tuple[float, float]] = field(
        default_factory=dict
    )  # to encode and decode a number of a message, by the text of the codec

    def table(self) -> dict[str, Any]:
        """The profile as a fleet file has it."""
        forward_ms, backward_ms = (
            [float(f"{1e3 * unit_s:.4g}") for unit_s in of_units] for of_units in (self.forward_s, self.backward_s)
        )
        table: dict[str, Any] = {
            "model": self.model,
            "batch_size": self.batch_size,
            "forward_ms": forward_ms,
            "backward_ms": backward_ms,
        }
        if self.step_s is not None:
            table["step_ms"] = float(f"{1e3 * self.step_s:.4g}")
        if not self.coding_s:
            return table
        encode_ns, decode_ns = (
            [float(f"{1e9 * number_s:.4g}") for number_s in column] for column in zip(*self.coding_s.values())
        )
        return table | {"codecs": [*self.coding_s], "encode_ns": encode_ns, "decode_ns": decode_ns}


@dataclass(frozen=True)
class Device:
    """One device. Speed is `cpu_hz` times `flops_per_cycle`; None: the file does not say."""

    name: str
    cpu_hz: float
    flops_per_cycle: float
    memory_bits: float | None = None
    max_cut: int | None = None
    power_w: float | None = None
    up_bps: float | None = None
    down_bps: float | None = None
    edge_up_bps: float | None = None
    edge_down_bps: float | None = None
    delay_s: float | None = None
    profile: Profile | None = None
    ending: Mapping[str, float] = field(
        default_factory=dict
    )  # of the main server: what it gives of the network's settings, by name


@dataclass(frozen=True)
class FleetFile:
    """What a fleet file says: its devices, and the main server where it describes one."""

    path: Path
    devices: tuple[Device, ...]
    main_server: Device | None

    @property
    def gives_memory(self) -> bool:
        """Whether memory decides how deep a cut some device can hold."""
        return any(device.memory_bits is not None and device.max_cut is None for device in self.devices)

    @property
    def gives_rates(self) -> bool:
        return any(device.up_bps or device.down_bps for device in self.devices)

    @property
    def profiles(self) -> tuple[Profile | None, ...]:
        """Of the devices, and last of the main server."""
        return (*(device.profile for device in self.devices), self.main_server.profile if self.main_server else None)


def read_fleet_file(path: str | Path) -> FleetFile:
    """Read a fleet file and check every value; an error names the file and the device."""
    path = Path(path)
    table = _load_fleet_file(path)
    for name in table:
        known_name(f"{path}: field", name, ("device", "main_server"), "; a device is a [[device]] table")
    rows = table.get("device", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: device is {type(rows).__name__}; write a [[device]] table for each device")
    if not rows:
        raise InputError(f"{path} lists no devices; add a [[device]] table, or write one with hsfl measure -o {path}")
    devices = tuple(_device(row, number, path) for number, row in enumerate(rows, 1))
    names = [device.name for device in devices]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{path}: two devices have the name {twice[0]!r}; rename one of them")
    server = table.get("main_server")
    if server is not None and not isinstance(server, dict):
        raise InputError(f"{path}: main_server is {server!r}; write a [main_server] table")
    return FleetFile(path, devices, None if server is None else _server(server, path))


def _load_fleet_file(path: Path) -> dict[str, Any]:
    """The content of a fleet file, TOML or JSON, as a mapping; nothing in it is checked yet."""
    check_ordinary(path)
    try:
        text = path.read_text("utf-8-sig")
        table = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except FileNotFoundError:
        raise InputError(
            f"cannot read the fleet {path}: there is no such file; correct fleet.file, or write it with hsfl measure -o {path}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read the fleet {path}: {error}") from None
    if not isinstance(table, dict):
        raise InputError(f"the fleet {path} holds a {type(table).__name__}; write a [[device]] table for each device")
    return table


def _device(row: Mapping[str, Any], number: int, path: Path) -> Device:
    name = row.get("name")
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 60:
        shown = "no name" if name is None else f"the name {name!r}"
        raise InputError(f'{path}: device {number} has {shown}; give up to 60 characters, such as name = "ward-1"')
    where = f"{path}: device {name!r}"
    cpu_hz, flops_per_cycle = _speed(row, DEVICE_FIELDS, where)
    rates: dict[str, Any] = {f"{key}_bps": _quantity(row, key, where) for key in ("up", "down", "edge_up", "edge_down")}
    max_cut, memory_bits = row.get("max_cut"), _quantity(row, "memory", where)
    if max_cut is not None and (type(max_cut) is not int or max_cut < 0):
        raise InputError(f"{where}: max_cut is {max_cut!r}; give a whole number, 0 or more")
    if max_cut is not None and memory_bits is not None:
        raise InputError(f"{where} has both max_cut and memory; keep one of them")
    power_w, delay_s = (_quantity(row, key, where) for key in ("power", "delay"))
    profile = _profile(row, where)
    return Device(
        name, cpu_hz, flops_per_cycle, memory_bits, max_cut, power_w, **rates, delay_s=delay_s, profile=profile
    )


def _server(row: Mapping[str, Any], path: Path) -> Device:
    where = f"{path}: main_server"
    speed = _speed(row, SERVER_FIELDS, where)
    ending = {setting: _quantity(row, key, where) for key, (_, setting) in ENDING.items()}
    given = {setting: value for setting, value in ending.items() if value is not None}
    return Device("main server", *speed, profile=_profile(row, where), ending=given)


def _profile(row: Mapping[str, Any], where: str) -> Profile | None:
    table = row.get("profile")
    if table is None:
        return None
    where = f"{where}: profile"
    if not isinstance(table, dict):
        raise InputError(f"{where} is {reprlib.repr(table)}; let hsfl measure write it, or leave it out")
    for name in table:
        known_name(f"{where}: field", name, PROFILE_FIELDS)
    model, batch_size = table.get("model"), table.get("batch_size")
    if not isinstance(model, str) or type(batch_size) is not int or batch_size < 1:
        raise InputError(f"{where} needs model and batch_size, such as resnet18 and 32; let hsfl measure write it")
    forward_s, backward_s = (_unit_seconds(table, name, where) for name in ("forward_ms", "backward_ms"))
    if len(forward_s) != len(backward_s):
        raise InputError(
            f"{where} has {len(forward_s)} units in forward_ms and {len(backward_s)} in backward_ms; give one each"
        )
    step_s = None
    if "step_ms" in table:
        (step_s,) = _unit_seconds({"step_ms": [table["step_ms"]]}, "step_ms", where)
        if not step_s:
            raise InputError(f"{where}: step_ms is 0; give the milliseconds of a step, or leave it out")
    return Profile(model, batch_size, forward_s, backward_s, step_s, _coding_seconds(table, where))


def _coding_seconds(table: Mapping[str, Any], where: str) -> dict[str, tuple[float, float]]:
    """Seconds to encode and decode a number, by codec; none where the profile has none. Whether a codec is known is asked where it is used."""
    texts = table.get("codecs", [])
    if not isinstance(texts, list) or len(texts) > MOST_CODECS or not all(isinstance(text, str) for text in texts):
        raise InputError(f'{where}: codecs is {reprlib.repr(texts)}; give names, such as ["int8"]')
    if not texts and not {"encode_ns", "decode_ns"} & table.keys():
        return {}
    encode_s, decode_s = (_seconds(table, name, where, "nanoseconds", 1e9) for name in ("encode_ns", "decode_ns"))
    if not len(set(texts)) == len(texts) == len(encode_s) == len(decode_s):
        raise InputError(
            f"{where} has {len(texts)} codecs, {len(encode_s)} times in encode_ns and {len(decode_s)} in decode_ns; give one each"
        )
    return dict(zip(texts, zip(encode_s, decode_s)))


def _unit_seconds(table: Mapping[str, Any], name: str, where: str) -> tuple[float, ...]:
    return _seconds(table, name, where, "milliseconds", 1e3)


def _seconds(table: Mapping[str, Any], name: str, where: str, unit: str, per_second: float) -> tuple[float, ...]:
    """A list of times in this unit, of which a second has so many."""
    values, what = table.get(name), "unit" if unit == "milliseconds" else "codec"
    if not isinstance(values, list) or not 0 < len(values) <= MOST_UNITS:
        raise InputError(f"{where}: {name} is {reprlib.repr(values)}; give {unit} for each {what}, such as [1.5, 0.7]")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_MS:
            raise InputError(f"{where}: {name} has {reprlib.repr(value)}; give {unit}, 0 or more")
    return tuple(value / per_second for value in values)


def _speed(row: Mapping[str, Any], fields: Sequence[str], where: str) -> tuple[float, float]:
    """Cycles per second and FLOPs per cycle; where both compute and cpu are given, compute is the speed."""
    for name in row:
        known_name(f"{where}: field", name, fields)
    compute, cpu_hz, per_cycle = _quantity(row, "compute", where), _quantity(row, "cpu", where), None
    if "flops_per_cycle" in row:
        per_cycle = row["flops_per_cycle"]
        if isinstance(per_cycle, bool) or not isinstance(per_cycle, int | float) or not 0 < per_cycle < 1e9:
            raise InputError(f"{where}: flops_per_cycle is {per_cycle!r}; give a number above 0, such as 8")
    if compute is None and cpu_hz is None:
        raise InputError(f'{where} has no speed; give compute = "35 GFLOP/s" (hsfl measure finds it) or cpu = "3.6GHz"')
    if compute is None:
        assert cpu_hz is not None
        return cpu_hz, float(per_cycle or 1.0)
    if per_cycle is not None:
        raise InputError(f"{where} has both compute and flops_per_cycle, but compute says it all; keep one of them")
    return (compute, 1.0) if cpu_hz is None else (cpu_hz, compute / cpu_hz)


def _quantity(row: Mapping[str, Any], key: str, where: str) -> float | None:
    """A quantity of the file in base units: cycles or FLOPs per second, bits, bits per second, watts."""
    value = row.get(key)
    if value is None:
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InputError("give text with a number and a unit, or a number")
        kind = ENDING[key][0] if key in ENDING else QUANTITIES[key]
        return parse_quantity(kind, value if isinstance(value, str) else repr(value), doubt=True)
    except InputError as error:
        raise InputError(f"{where}: {key} is {reprlib.repr(value)}; {error}") from None


# --- a device entered into a fleet file

MISSING_LINKS = (
    '# up = "100Mbps"    # to and from the servers, as you measured them (iperf3, a copied file)\n# down = "100Mbps"'
)


def _size_text(bits: float) -> str:
    """Bits as text in MB, from 10 GB on in GB: 8e9 -> 1000MB. The size is rounded down, so that a device never
    promises more memory than it has."""
    return f"{int(bits / 8e6)}MB" if bits < 8e10 else f"{int(bits / 8e9)}GB"


def device_entry(
    name: str, flops_per_s: float, memory_bits: float | None, link: Mapping[str, str | None], profile: Profile
) -> dict[str, Any]:
    """A device's fields, as text with units. link: up, down and others of the link, such as 100Mbps."""
    entry: dict[str, Any] = {"name": name, "compute": quantity_text(flops_per_s, "FLOP/s")}
    entry |= {} if memory_bits is None else {"memory": _size_text(memory_bits)}
    return entry | {key: value for key, value in link.items() if value is not None} | {"profile": profile.table()}


def entry_toml(entry: dict[str, Any], table: str, note: str) -> str:
    """An entry as a TOML table, with its profile in a table below. table: its head, [[device]] or [main_server]. note: a comment beside the
    speed."""
    lines = [table, *(_line(key, value) for key, value in entry.items() if key != "profile")]
    lines = [f"{line}  # {note}" if line.startswith("compute = ") else line for line in lines]
    if table == "[[device]]" and "up" not in entry:
        lines.append(MISSING_LINKS)
    if "profile" in entry:
        lines += ["", f"[{table.strip('[]')}.profile]  # of each unit, for a batch"]
        lines += [_line(key, value) for key, value in entry["profile"].items()]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"


def check_device_is_new(path: Path, name: str | None) -> None:
    """Refuse a fleet file that cannot be read or has this device already, before anything is measured. name: None is the main server."""
    if not path.exists():
        return
    check_ordinary(path)
    if not path.read_bytes().strip():
        return
    table = _load_fleet_file(path)
    if "device" in table:
        fleet = read_fleet_file(path)
        if name is not None and name in [device.name for device in fleet.devices]:
            raise InputError(f"{path} has a device {name!r} already; choose another --name, or delete its table")
    elif "main_server" not in table:
        raise InputError(
            f"{path} is no fleet file: it has neither [[device]] tables nor [main_server]; choose another -o"
        )
    if name is None and "main_server" in table:
        raise InputError(f"{path} has a [main_server] already; delete its table first")


def with_device_added(path: Path, entry: dict[str, Any], server: bool, note: str) -> str:
    """The text of the fleet file with one more entry; the file need not be there yet."""
    old = path.read_text("utf-8-sig") if path.exists() else ""
    if path.suffix == ".toml":
        table = entry_toml(entry, "[main_server]" if server else "[[device]]", note)
        return f"{old.rstrip()}\n\n{table}" if old.strip() else table
    tree = json.loads(old) if old.strip() else {}
    if server:
        tree["main_server"] = entry
    else:
        tree.setdefault("device", []).append(entry)
    return json.dumps(tree, indent=1, ensure_ascii=False) + "\n"
