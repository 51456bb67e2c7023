"""A device entered into a fleet file, as hsfl measure does it; what stood there stays, comments too."""

import json
from pathlib import Path

from hsfl.errors import InputError
from hsfl.files import check_ordinary
from hsfl.fleet import file as fleet_file
from hsfl.fleet.quantities import say

MISSING_LINKS = (
    '# up = "100Mbps"    # to and from the servers, as you measured them (iperf3, a copied file)\n# down = "100Mbps"'
)


def size(bits: float) -> str:
    """Bits as text in MiB, from 10 GiB on in GiB: 2^33 -> 1024MiB. The size is rounded down, so that a device never
    promises more memory than it has."""
    return f"{int(bits / 8 / 2**20)}MiB" if bits < 8 * 2**30 * 10 else f"{int(bits / 8 / 2**30)}GiB"


def device_entry(
    name: str, flops_per_s: float, memory_bits: float | None, up: str | None, down: str | None
) -> dict[str, str]:
    """A device's fields, as text with units. up, down: rates as the user typed them, such as 100Mbps."""
    given = {"name": name, "compute": say(flops_per_s, "FLOP/s")}
    given |= {} if memory_bits is None else {"memory": size(memory_bits)}
    return given | {key: rate for key, rate in (("up", up), ("down", down)) if rate is not None}


def toml(entry: dict[str, str], table: str, note: str) -> str:
    """An entry as a TOML table. table: its head, [[device]] or [main_server]. note: a comment beside the speed."""
    lines = [table, *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items())]
    lines[-1 if len(lines) == 2 else 2] += f"  # {note}"
    if table == "[[device]]" and "up" not in entry:
        lines.append(MISSING_LINKS)
    return "\n".join(lines) + "\n"


def check_free(path: Path, name: str | None) -> None:
    """Refuse a fleet file that cannot be read or has this device already, before anything is measured. name: None is the main server."""
    if not path.exists():
        return
    check_ordinary(path)
    if not path.read_bytes().strip():
        return
    table = fleet_file.load(path)
    if "device" in table:
        found = fleet_file.read(path)
        if name is not None and name in [device.name for device in found.devices]:
            raise InputError(f"{path} has a device {name!r} already; choose another --name, or delete its table")
    elif "main_server" not in table:
        raise InputError(
            f"{path} is no fleet file: it has neither [[device]] tables nor [main_server]; choose another -o"
        )
    if name is None and "main_server" in table:
        raise InputError(f"{path} has a [main_server] already; delete its table first")


def added(path: Path, entry: dict[str, str], server: bool, note: str) -> str:
    """The text of the fleet file with one more entry; the file need not be there yet."""
    old = path.read_text("utf-8-sig") if path.exists() else ""
    if path.suffix == ".toml":
        table = toml(entry, "[main_server]" if server else "[[device]]", note)
        return f"{old.rstrip()}\n\n{table}" if old.strip() else table
    tree = json.loads(old) if old.strip() else {}
    if server:
        tree["main_server"] = entry
    else:
        tree.setdefault("device", []).append(entry)
    return json.dumps(tree, indent=1, ensure_ascii=False) + "\n"
