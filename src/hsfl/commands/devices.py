"""`hsfl plan --device`: the device is read from words, and the seconds of every cut are shown."""

import re
from typing import TYPE_CHECKING, Any

from hsfl.commands.allocations import show_table
from hsfl.commands.shared import out_console
from hsfl.errors import InputError, known
from hsfl.formats import brief, giga, seconds, significant

if TYPE_CHECKING:
    from hsfl.config import RunConfig
    from hsfl.planning.world import World

SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
RATES = {
    "": 1.0,
    "bps": 1.0,
    "b/s": 1.0,
    "bit/s": 1.0,
    "bits/s": 1.0,
    "Bps": 8.0,
    "B/s": 8.0,
    "byte/s": 8.0,
    "bytes/s": 8.0,
}
UNITS = {  # how many cycles per second, bits or bits per second a unit is
    "cpu": {"": 1.0, "Hz": 1.0, "hz": 1.0, "HZ": 1.0},
    "memory": {"": 8.0, "B": 8.0, "byte": 8.0, "bytes": 8.0},
    "up": RATES,
    "down": RATES,
}
EXAMPLES = {"cpu": "5GHz", "memory": "1GB or 1GiB", "up": "5Mbps or 1MB/s", "down": "20Mbps or 2MB/s"}
NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?:([kKmMgGtT]i?)(?=[a-zA-Z]|$))?(.*)")


def read_device(text: str) -> dict[str, float]:
    """A device from words such as cpu=5e9,memory=1GiB,up=5Mbps,down=20Mbps: cycles per second, bits, and bits per second."""
    device: dict[str, float] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        name = known("--device field", name.lower(), UNITS)
        if not equals:
            raise InputError(f"--device {name} has no value; write {name}={EXAMPLES[name]}")
        if name in device:
            raise InputError(f"--device gives {name} twice; keep one of them")
        device[name] = read_quantity(name, value)
    if missing := [name for name in ("cpu", "up", "down") if name not in device]:
        raise InputError(f"--device lacks {missing[0]}; give cpu=..,memory=..,up=..,down=..")
    return device


def read_quantity(name: str, value: str) -> float:
    """The amount that a word such as 5Mbps (5e6) stands for. b is bits and B bytes; m would be milli and is refused.

    name: the field of the device.
    """
    wrong, such_as = f"--device {name} is {value!r}", f"such as {EXAMPLES[name]}"
    match = NUMBER.fullmatch(value)
    if match is None:
        raise InputError(f"{wrong}; give a number, {such_as}")
    number, prefix, unit = float(match[1]), match[2] or "", match[3].strip()
    if prefix.startswith("m"):
        raise InputError(f"{wrong}; m is milli, write M for a million, {such_as}")
    if name == "memory" and unit in ("b", "bit", "bits"):
        raise InputError(f"{wrong}: bits or bytes? give bytes, {such_as}")
    if unit not in UNITS[name]:
        raise InputError(f"{wrong}; its unit is unknown, give a number {such_as}")
    if number <= 0:
        raise InputError(f"{wrong}; give a number above 0, {such_as}")
    scale = prefix.lower() if prefix[:1] in "kK" else prefix.capitalize()
    amount = number * SCALES[scale] * UNITS[name][unit]
    if not 1e-6 <= amount <= 1e30:
        raise InputError(f"{wrong}, which is beyond any device; give a number {such_as}")
    return amount


def device_assumptions(world: "World", settings: "RunConfig", samples_per_client: int) -> dict[str, Any]:
    """What the answer for one device assumes."""
    return {
        "samples_per_client": samples_per_client,
        "local_epochs": settings.train.local_epochs,
        "batch_size": world.cost.batch_size if world.cost.memory_bits is not None else None,  # that memory is for
        "num_clients": settings.fleet.num_clients,
        "server_hz": world.servers.main_hz / settings.fleet.num_clients,
        "tau_s": settings.train.tau_s,
    }


def training_s(row: dict[str, Any]) -> float:
    """The seconds that tau_s limits: training and upload, without the download that follows. row: of `device_table`."""
    return float(row["round_s"]) - float(row["seconds"]["model_down"])


def show_device(rows: list[dict[str, Any]], best: int | None, assumed: dict[str, Any]) -> None:
    """Show every cut of `device_table` to people, the best cut in bold."""
    epochs = f" over {assumed['local_epochs']} epochs" if assumed["local_epochs"] > 1 else ""
    batch = "weights alone" if assumed["batch_size"] is None else f"a mini-batch of {assumed['batch_size']}"
    out_console.print(
        f"seconds of a round of {assumed['samples_per_client']} samples{epochs}; memory for "
        f"{batch}; the device gets 1/{assumed['num_clients']} of the main server, "
        f"{giga(assumed['server_hz'])} Gcycles/s (--samples-per-client, train.batch_size, fleet.num_clients)",
        highlight=False,
    )
    names = {"client": "own", "smashed": "up", "server": "server", "gradient": "down"}
    names |= {"model_up": "model\nup", "model_down": "model\ndown"}
    cells = [
        (
            str(row["cut"]),
            *(brief(row["seconds"][name]) for name in names),
            significant(row["round_s"]),
            significant(row["memory_bits"] / 8 / 2**20) + ("" if row["fits"] else "!"),
        )
        for row in rows
    ]
    styles = ["bold" if row["cut"] == best else None if row["fits"] else "dim" for row in rows]
    show_table(out_console, ("cut", *names.values(), "round", "memory\nMiB"), cells, styles)
    if not all(row["fits"] for row in rows):
        out_console.print("! does not fit into the device's memory", highlight=False)
    if best is None:
        out_console.print("no cut fits; give the device more memory or train with a smaller batch", highlight=False)
        return
    out_console.print(f"cut {best} is the fastest that fits", highlight=False)
    if assumed["tau_s"] is not None:
        out_console.print(_about_tau(rows, best, assumed["tau_s"]), highlight=False)


def _about_tau(rows: list[dict[str, Any]], best: int, tau_s: float) -> str:
    needed_s = next(training_s(row) for row in rows if row["cut"] == best)
    if needed_s <= tau_s:
        return f"its training and upload take {seconds(needed_s, 4)}, within train.tau_s = {tau_s:g} s"
    others = [str(row["cut"]) for row in rows if row["fits"] and training_s(row) <= tau_s]
    way_out = f"in time: cut {', '.join(others)}" if others else "no cut that fits is in time; raise train.tau_s"
    return f"its training and upload take {seconds(needed_s, 4)}, longer than train.tau_s = {tau_s:g} s; {way_out}"
