"""`hsfl plan --device`: the device is read from words, and the seconds of every cut are shown."""

from typing import TYPE_CHECKING, Any

from hsfl import quantities
from hsfl.commands.allocations import show_table
from hsfl.commands.shared import out_console
from hsfl.errors import InputError, known
from hsfl.formats import brief, seconds, significant

if TYPE_CHECKING:
    from hsfl.config import RunConfig
    from hsfl.planning.world import World

KINDS = {"cpu": "cycles", "compute": "compute", "memory": "memory", "up": "rate", "down": "rate"}


def read_device(text: str) -> dict[str, float]:
    """A device from words such as cpu=5e9,memory=1GiB,up=5Mbps,down=20Mbps. In the answer, cpu is in cycles per second,
    compute in FLOPs per second, memory in bits, up and down in bits per second."""
    device: dict[str, float] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        name = known("--device field", name.lower(), KINDS)
        if not equals:
            raise InputError(f"--device {name} has no value; write {name}={quantities.KINDS[KINDS[name]].example}")
        if name in device:
            raise InputError(f"--device gives {name} twice; keep one of them")
        try:
            device[name] = quantities.parse(KINDS[name], value)
        except InputError as error:
            raise InputError(f"--device {name} is {value!r}; {error}") from None
    if "cpu" in device and "compute" in device:
        raise InputError("--device gives both cpu and compute, which both mean the speed; keep one of them")
    if missing := [name for name in ("cpu", "up", "down") if name not in device and not _has_speed(name, device)]:
        raise InputError(f"--device lacks {missing[0]}; give cpu=.. or compute=.., memory=.., up=.., down=..")
    return device


def _has_speed(name: str, device: dict[str, float]) -> bool:
    return name == "cpu" and "compute" in device


def device_assumptions(world: "World", settings: "RunConfig", samples_per_client: int) -> dict[str, Any]:
    """What the answer for one device assumes."""
    return {
        "samples_per_client": samples_per_client,
        "local_epochs": settings.train.local_epochs,
        "batch_size": world.cost.batch_size if world.cost.memory_bits is not None else None,  # for memory_bits
        "num_clients": settings.fleet.num_clients,
        "server_hz": world.servers.main_hz / settings.fleet.num_clients,
        "server_flops_per_s": world.servers.main_hz * world.servers.flops_per_cycle / settings.fleet.num_clients,
        "tau_s": settings.train.tau_s,
    }


def training_s(row: dict[str, Any]) -> float:
    """The seconds that tau_s limits: training and upload, without the download that follows. row: a row of
    `device_table`."""
    return float(row["round_s"]) - float(row["seconds"]["model_down"])


def show_device(rows: list[dict[str, Any]], best: int | None, assumed: dict[str, Any]) -> None:
    """Show every cut of `device_table` to people, the best cut in bold."""
    epochs = f", {assumed['local_epochs']:g} local epochs," if assumed["local_epochs"] != 1 else ""
    batch = "weights alone" if assumed["batch_size"] is None else f"a mini-batch of {assumed['batch_size']}"
    out_console.print(
        f"seconds of a round of {assumed['samples_per_client']} samples{epochs}; memory for "
        f"{batch}; the device gets 1/{assumed['num_clients']} of the main server, "
        f"{quantities.say(assumed['server_flops_per_s'], 'FLOP/s')} (--samples-per-client, train.batch_size, fleet.num_clients)",
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
        out_console.print("! does not fit into the device's memory")
    if best is None:
        out_console.print("no cut fits; give the device more memory or train with a smaller batch")
        return
    out_console.print(f"cut {best} is the fastest that fits")
    if assumed["tau_s"] is not None:
        out_console.print(_about_tau(rows, best, assumed["tau_s"]))


def _about_tau(rows: list[dict[str, Any]], best: int, tau_s: float) -> str:
    needed_s = next(training_s(row) for row in rows if row["cut"] == best)
    if needed_s <= tau_s:
        return f"its training and upload take {seconds(needed_s, 4)}, within train.tau_s = {tau_s:g} s"
    others = [str(row["cut"]) for row in rows if row["fits"] and training_s(row) <= tau_s]
    way_out = f"in time: cut {', '.join(others)}" if others else "no cut that fits is in time; raise train.tau_s"
    return f"its training and upload take {seconds(needed_s, 4)}, longer than train.tau_s = {tau_s:g} s; {way_out}"
