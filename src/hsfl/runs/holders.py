"""Who holds what, where both the data and a fleet file have names: a device gets the samples that the data say it holds."""

from dataclasses import replace

import numpy as np

from hsfl import fleet_file
from hsfl.config import RunConfig
from hsfl.data.registry import Dataset
from hsfl.errors import InputError


def by_device(config: RunConfig, dataset: Dataset) -> Dataset:
    """The data set whose clients are numbered as the devices of the fleet file, where the data use the devices' names.

    Where the two share no name, the clients keep their own order; where they share some, the others are an error."""
    devices, clients = _device_names(config), dataset.client_names
    if dataset.clients is None or not set(devices) & set(clients):
        return dataset
    for names, others, says in (
        (clients, devices, "holds samples but is no device of {}; correct the name in the data, or add the device"),
        (devices, clients, "is a device of {} but holds no samples; correct the name in the data, or drop the device"),
    ):
        if strange := [name for name in names if name not in others]:
            raise InputError(f"{strange[0]!r} {says.format(config.fleet.file)}")
    number = np.array([devices.index(name) for name in clients])
    return replace(dataset, clients=number[dataset.clients], client_names=tuple(devices))


def client_names(config: RunConfig, dataset: Dataset) -> tuple[str, ...]:
    """The names of the clients [K] where the data say who holds what, and by names; numbers are no names."""
    names = dataset.client_names
    if config.data.partition != "given" or config.fleet.file is not None or all(name.isdigit() for name in names):
        return ()
    return names


def holder_note(config: RunConfig, dataset: Dataset) -> str | None:
    """What to say where the data's clients and the fleet's devices have names, and none in common: who is taken for whom."""
    devices, clients = _device_names(config), dataset.client_names
    if not devices or set(devices) & set(clients) or all(name.isdigit() for name in clients):
        return None
    pairs = ", ".join(f"{client} is {device}" for client, device in zip(clients[:3], devices))
    return (
        f"the clients of the data are taken for the devices of {config.fleet.file} in order: {pairs}"
        f"{', ...' if len(clients) > 3 else ''}; give both the same names to be sure"
    )


def _device_names(config: RunConfig) -> list[str]:
    """The names of the fleet file's devices; empty where there is no such file."""
    path = config.fleet.file
    return [] if path is None else [device.name for device in fleet_file.read(path).devices]
