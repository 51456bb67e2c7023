"""What a fleet file says beyond its devices: the speed of their links and of the main server, put into the config."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hsfl import fleet_file
from hsfl.config import NetworkConfig, RunConfig
from hsfl.errors import InputError
from hsfl.fleet_file import Device, FleetFile, Profile
from hsfl.models.cost_table import CostTable
from hsfl.network.channel import RATE_NAMES
from hsfl.network.latency import UnitWork, client_work
from hsfl.planning.coded_cost import Coding, coding_of_clients, timed_coding

FIELDS = {name: name.removeprefix("main_") for name in RATE_NAMES}  # main_up_bps is a device's `up`


def with_fleet_file(config: RunConfig) -> RunConfig:
    """The config whose network has the rates and the main server of its fleet file; what a fleet file leaves out stays."""
    file = _read(config)
    if file is None:
        return config
    network = config.network
    changes = _server(network, file)
    if network.kind == "measured":
        changes |= _ending(network, file)
    if network.kind == "measured" and network.history is None:
        changes |= _rates(network, file) | _delays(network, file)
    elif network.kind == "ofdma":
        _check_radio(file)
    return config.model_copy(update={"network": network.model_copy(update=changes)})


def fleet_notes(config: RunConfig) -> list[str]:
    """Warnings of a fleet file: nobody describes the main server, or units are timed by their FLOPs at one speed."""
    file, network = _read(config), config.network
    if file is None:
        return []
    notes = [_profile_note(config, file), _ending_note(config, file)] if network.kind == "measured" else []
    if file.main_server is not None or not _is_default(network):
        return [note for note in notes if note]
    return [
        *[note for note in notes if note],
        f"the main server is the paper's ({network.main_hz:g} cycles per second, one FLOP each), beside devices that "
        f"{file.path} describes: cuts and seconds rest on it. Measure the server with hsfl measure --server -o {file.path}, "
        "or set network.main_hz",
    ]


def _ending_note(config: RunConfig, file: FleetFile) -> str | None:
    """That the file's main server says nothing of the end of a round."""
    if file.main_server is None or file.main_server.ending or config.network.server == "shares":
        return None
    if any(getattr(config.network, setting) for _, setting in fleet_file.ENDING.values()):
        return None
    return (
        f"the end of a round (swap, average, test, checkpoint) is planned to take no time, as [main_server] in {file.path} does not say; "
        "let hsfl measure --server write it there, or copy what a deployment measured"
    )


def _profile_note(config: RunConfig, file: FleetFile) -> str | None:
    """Who has no profile for the config's model and batches."""
    described = (*file.devices, *([file.main_server] if file.main_server else []))
    without = [device.name for device in described if not _fits(device.profile, config)]
    if not without:
        return None
    who = "no machine" if len(without) == len(described) else f"not {', '.join(without[:3])}"
    who += f" and {len(without) - 3} others" if 3 < len(without) < len(described) else ""
    return (
        f"{who} of {file.path} has a profile of {config.model.name} in batches of {config.train.batch_size}, so all units are timed at "
        "one speed, though a unit can take three times as long as its FLOPs say; run hsfl measure there"
    )


@dataclass(frozen=True)
class MeasuredWorks:
    """The work of the units of a fleet file's devices [K, C] and main server [C], where they were measured unit by unit."""

    devices: UnitWork | None
    main_server: UnitWork | None
    device_coding: Coding | None = None  # FLOPs to encode and decode a number, [K, 1] by codec
    main_coding: Coding | None = None


def measured_works(config: RunConfig, cost: CostTable) -> MeasuredWorks:
    """The profiles of a fleet file as work for the config's model; None where links are a radio, as in the paper. A device whose profile is
    of another model or batch size, or that has none, keeps the FLOPs of the cost table."""
    file = _read(config)
    if (
        file is None
        or config.network.kind != "measured"
        or not any(_fits(profile, config) for profile in file.profiles)
    ):
        return MeasuredWorks(None, None)
    for device in (*file.devices, *([file.main_server] if file.main_server else [])):
        profile = device.profile
        if profile is not None and _fits(profile, config) and len(profile.forward_s) != cost.num_units:
            raise InputError(
                f"{file.path}: the profile of {device.name!r} has {len(profile.forward_s)} units, and {config.model.name} "
                f"has {cost.num_units} here; run hsfl measure again, or delete the profile"
            )
    devices = [
        UnitWork.before_cuts(
            device.profile.forward_s, device.profile.backward_s, _sample_speed(device, config), device.profile.step_s
        )
        if device.profile is not None and _fits(device.profile, config)
        else client_work(cost, None)
        for device in file.devices
    ]
    main, main_work = file.main_server, None
    if main is not None and main.profile is not None and _fits(main.profile, config):
        main_work = UnitWork.after_cuts(main.profile.forward_s, main.profile.backward_s, _sample_speed(main, config))
    device_coding = coding_of_clients([_coding(device, config) for device in file.devices], config.link)
    return MeasuredWorks(
        UnitWork.of_clients(devices), main_work, device_coding, None if main is None else _coding(main, config)
    )


def _coding(device: Device, config: RunConfig) -> dict[str, tuple[float, float]]:
    """FLOPs of coding a number at the device's speed, where its codecs were timed."""
    if device.profile is None or not _fits(device.profile, config):
        return {}
    return timed_coding(device.profile.coding_s, device.cpu_hz * device.flops_per_cycle)


def _sample_speed(device: Device, config: RunConfig) -> float:
    return device.cpu_hz * device.flops_per_cycle / config.train.batch_size


def _fits(profile: Profile | None, config: RunConfig) -> bool:
    """Whether a profile is of the config's model and batches."""
    return profile is not None and (profile.model, profile.batch_size) == (config.model.name, config.train.batch_size)


def _read(config: RunConfig) -> FleetFile | None:
    return None if config.fleet.file is None else fleet_file.read_fleet_file(config.fleet.file)


def _is_default(network: NetworkConfig) -> bool:
    usual = NetworkConfig()
    return (network.main_hz, network.flops_per_cycle) == (usual.main_hz, usual.flops_per_cycle)


def _server(network: NetworkConfig, file: FleetFile) -> dict[str, Any]:
    server = file.main_server
    if server is None:
        return {}
    if not _is_default(network):
        raise InputError(
            f"network.main_hz and network.flops_per_cycle have no effect beside [main_server] in {file.path}; leave "
            "one of them out"
        )
    return {"main_hz": server.cpu_hz, "flops_per_cycle": server.flops_per_cycle}


def _ending(network: NetworkConfig, file: FleetFile) -> dict[str, Any]:
    """The end of a round, as far as the file's main server gives it."""
    ending = file.main_server.ending if file.main_server else {}
    usual, file_words = NetworkConfig(), {setting: word for word, (_, setting) in fleet_file.ENDING.items()}
    for setting in ending:
        if getattr(network, setting) != getattr(usual, setting):
            raise InputError(
                f"network.{setting} has no effect beside {file_words[setting]} of [main_server] in {file.path}; leave one of them out"
            )
    return dict(ending)


def _rates(network: NetworkConfig, file: FleetFile) -> dict[str, Any]:
    """The rates of every device in bits per second. The config's number for all stands in for devices that give no rate; a rate
    to one server that nobody gives is the rate to the other server."""
    given_bps: dict[str, Any] = {}
    for name, field in FIELDS.items():
        device_bps, config_bps = [getattr(device, field) for device in file.devices], getattr(network, name)
        if config_bps is not None and any(device_bps) and (all(device_bps) or isinstance(config_bps, tuple)):
            raise InputError(
                f"network.{name} has no effect beside {_word(field)} of the devices in {file.path}; leave one of them out"
            )
        default_bps = config_bps if isinstance(config_bps, tuple) else (config_bps,) * len(device_bps)
        if len(default_bps) != len(device_bps):
            raise InputError(
                f"network.{name} has {len(default_bps)} numbers for {len(device_bps)} devices; give one each"
            )
        given_bps[name] = _filled(device_bps, default_bps)
    rates = {name: _filled(given_bps[name], given_bps[to_other_server(name)]) for name in FIELDS}
    for name, field in FIELDS.items():
        if None in rates[name]:
            device = file.devices[rates[name].index(None)]
            raise InputError(
                f'{file.path}: device {device.name!r} has no {_word(field)}, which network.kind = "measured" needs; give '
                f'{_word(field)} = "100Mbps", or network.{name} for all'
            )
    return rates


def _delays(network: NetworkConfig, file: FleetFile) -> dict[str, Any]:
    """The delay of every device in seconds; the config's number for all stands in for devices that give none."""
    given = [device.delay_s for device in file.devices]
    if all(delay_s is None for delay_s in given):
        return {}
    if np.any(network.delay_s) and (None not in given or isinstance(network.delay_s, tuple)):
        raise InputError(
            f"network.delay_s has no effect beside delay of the devices in {file.path}; leave one of them out"
        )
    return {"delay_s": tuple(network.delay_s if delay_s is None else delay_s for delay_s in given)}


def _filled(first: Sequence[float | None], second: Sequence[float | None]) -> tuple[float | None, ...]:
    return tuple(other_bps if bps is None else bps for bps, other_bps in zip(first, second))


def to_other_server(name: str) -> str:
    """The name of the rate in the same direction, to or from the other server: main_up_bps -> edge_up_bps."""
    return name.replace("main", "edge") if name.startswith("main") else name.replace("edge", "main")


def _word(field: str) -> str:
    """The word for a rate in a device's table: up_bps -> up."""
    return field.removesuffix("_bps")


def _check_radio(file: FleetFile) -> None:
    if file.gives_rates:
        raise InputError(
            f'{file.path} gives up and down of devices, but network.kind is "ofdma", where a radio makes the rates; set '
            "network.kind=measured, or leave them out"
        )
    for device in file.devices:
        if device.power_w is None:
            raise InputError(
                f'{file.path}: device {device.name!r} has no power, which a radio needs; give power = "2W", or up and '
                "down and set network.kind=measured"
            )
