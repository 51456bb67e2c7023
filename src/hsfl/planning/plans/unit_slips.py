"""Rounds so long or so short that a setting is probably in another unit than it was meant: `network.subchannel_hz = 1` is one hertz."""

from operator import attrgetter

from hsfl import fleet_file
from hsfl.config import RunConfig
from hsfl.formats import seconds
from hsfl.network.clock import Why
from hsfl.planning.fleet_from_file import to_other_server
from hsfl.quantities import quantity_text

LONGEST_S = 86_400.0  # nobody waits longer for a round
SHORTEST_S = 1e-6
LEAST_PER_HZ = 1e-3  # bits per second and hertz: below, a link is slow for its noise, not for its band
PHASES = {
    "client": "training on the clients",
    "smashed": "the upload of smashed data",
    "server": "training on the main server",
    "gradient": "the download of gradients",
    "model_up": "the upload of the model",
}
RATES = {"smashed": "main_up_bps", "gradient": "main_down_bps", "model_up": "edge_up_bps"}


def unit_note(config: RunConfig, round_s: float, why: Why | None) -> str | None:
    """A note where no real round takes so many seconds: the setting that decides the longest phase is probably in the wrong unit.

    why: the longest phase of the client on which the round hangs; None where no client trains.
    """
    if round_s <= 0 or SHORTEST_S <= round_s <= LONGEST_S:
        return None
    length = f"{seconds(round_s)} of simulated time"
    length += f" ({round_s / 86_400:,.0f} days)" if round_s > LONGEST_S else ""
    if why is None:
        link = _suspect(config, "smashed")
        return f"a round takes {length}; look at the units of {_suspect(config, 'server')} and {link}"
    unit = "FLOP/s" if why.phase in ("client", "server") else "bit/s"
    rate = quantity_text(why.per_second, unit)
    return (
        f"a round takes {length}, most of it {PHASES[why.phase]} at {rate}; look at the unit of "
        f"{_suspect(config, why.phase, why.per_second)}"
    )


def _suspect(config: RunConfig, phase: str, bps: float | None = None) -> str:
    """The setting that decides how long a phase takes, with its value, or the file that does. bps: of a link, where it is known."""
    network, path = config.network, config.fleet.file
    if phase == "server":
        in_file = path is not None and fleet_file.read_fleet_file(path).main_server is not None
        return f"[main_server] in {path}" if in_file else _with_value(config, "network.main_hz")
    if phase != "client" and network.kind == "ofdma":
        noisy = bps is not None and bps < LEAST_PER_HZ * network.subchannel_hz
        return _with_value(config, "network.noise_w" if noisy else "network.subchannel_hz")
    if network.history is not None:
        return f"network.history {network.history}"
    if phase == "client":
        return f"fleet.file {path}" if path is not None else _with_value(config, "fleet.cpu_hz")
    name = RATES[phase]
    name = to_other_server(name) if getattr(network, name) is None else name
    return f"fleet.file {path}" if getattr(network, name) is None else _with_value(config, f"network.{name}")


def _with_value(config: RunConfig, name: str) -> str:
    value = attrgetter(name)(config)
    shown = ", ".join(f"{number:g}" for number in value) if isinstance(value, tuple) else f"{value:g}"
    return f"{name} = {shown}"
