"""A config's data: read or given, limited, and divided among the clients. No torch.

Where both the data and a fleet file have names, a device gets the samples that the data say it holds. A plan needs less than the
samples themselves: `survey` and `expected_samples` give the shape of a sample, the classes and each client's number of samples.

Legend: K clients.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from hsfl import fleet_file
from hsfl.config import DEVICES_DATA, OWN_DATA, DataConfig, RunConfig
from hsfl.data.arrays import pixel_note
from hsfl.data.from_python import dataset_digest, fit_dataset
from hsfl.data.partition import Holdings, check_classes, is_redrawn, partition
from hsfl.data.readers import text
from hsfl.data.readers.reader_base import FileSettings
from hsfl.data.registry import FACTS, READERS, Dataset, Facts, OwnReader, find_data_dir, load_dataset
from hsfl.errors import DataMissing, InputError
from hsfl.rng import stream
from hsfl.tasks import LearningTask, find_task

# --- reading


def read_data(config: RunConfig, given: Dataset | None = None) -> Dataset:
    """The data set that the config names, or the given one; limits and the size of images apply to both."""
    data, rng = config.data, stream(config.seed, "data limit")
    if data.name == DEVICES_DATA:
        raise InputError(
            "the devices of this run hold its data, and the operator had none; its rounds say how good it was"
        )
    if not _is_given(data):
        if data.sha256 is not None:
            raise InputError(f"data.sha256 is for data given from Python but data.name is {data.name!r}; leave it out")
        return given or load_dataset(
            data.name,
            data.dir,
            limit=data.limit,
            limit_test=data.limit_test,
            rng=rng,
            image_size=data.image_size,
            split=data.split,
            options=config.options.of(data.name.partition(":")[0]),
            files=_file_settings(config),
        )
    if given is None:
        raise InputError("this run's data were given from Python; go on from there: hsfl.run(config, folder, data=...)")
    _file_settings(config).check(OWN_DATA)
    if data.client_file is not None:
        raise InputError(f"data.client_file is {data.client_file!r} beside data from Python; give clients= with them")
    if data.sha256 is not None and dataset_digest(given) != data.sha256:
        raise InputError("the data are not those that this run began with; give the same, or run into a new folder")
    return fit_dataset(given, data.image_size, data.limit, data.limit_test, rng)


def _is_given(data: DataConfig) -> bool:
    """Whether the config's data came from Python and not from a file."""
    return data.name.partition(":")[0] == OWN_DATA


def _file_settings(config: RunConfig) -> FileSettings:
    values = {field.name: getattr(config.data, field.name) for field in fields(FileSettings) if field.name != "task"}
    return FileSettings(**values, task=config.train.task)


def data_files(data: DataConfig) -> dict[str, Path]:
    """The user's own files from which a config's data are read, by the field that names the file; missing files are
    left out."""
    kind, _, path = data.name.partition(":")
    names = {"data.name": path if kind in ("npz", "csv", "text") else None}
    names |= {"data.test_file": data.test_file, "data.client_file": data.client_file}
    names |= {"data.tokenizer": data.tokenizer}
    paths = {}
    for field, name in names.items():
        if name is not None:
            named_path = Path(name).expanduser()
            paths[field] = named_path if named_path.is_file() else find_data_dir(data.dir) / named_path
    return {field: file for field, file in paths.items() if file.is_file()}


def expected_task(config: RunConfig, given: Dataset | None = None) -> LearningTask:
    """What a run of this config learns, as far as can be said before the data are read."""
    if config.train.task is not None or given is not None:
        return find_task(config.train.task or (given.task if given is not None else None))
    reader = READERS.get(config.data.name.partition(":")[0])
    if isinstance(reader, OwnReader):
        return find_task(reader.task)
    return find_task(text.TASK if reader in (text.read_text, text.read_pydoc) else None)


# --- dividing among clients


def divide_samples(config: RunConfig, dataset: Dataset) -> Holdings:
    """The indices of each client's training samples, [K]."""
    data = config.data
    if data.client_file is not None and data.partition != "given":
        raise InputError(
            f"data.client_file is {data.client_file!r} but data.partition is {data.partition!r}, which does not look at it; "
            "set data.partition=given, or leave the file out"
        )
    if data.partition == "given":
        dataset = _by_device(config, dataset)
    check_classes(data.partition, dataset.task, dataset.targets)
    return partition(
        dataset.strata("train"),
        config.fleet.num_clients,
        data.partition,
        stream(config.seed, "partition"),
        alpha=data.alpha,
        classes_per_client=data.classes_per_client,
        min_samples=data.min_samples,
        clients=dataset.clients,
        client_names=dataset.client_names,
    )


def _by_device(config: RunConfig, dataset: Dataset) -> Dataset:
    """The data set whose clients are numbered as the devices of the fleet file, where the data use the devices' names.

    Where the two share no name, the clients keep their own order; where they share some, the others are an error."""
    devices, clients = _device_names(config), dataset.client_names
    if dataset.clients is None or not set(devices) & set(clients):
        return dataset
    for names, others, complaint in (
        (clients, devices, "holds samples but is no device of {}; correct the name in the data, or add the device"),
        (devices, clients, "is a device of {} but holds no samples; correct the name in the data, or drop the device"),
    ):
        if strange := [name for name in names if name not in others]:
            raise InputError(f"{strange[0]!r} {complaint.format(config.fleet.file)}")
    number = np.array([devices.index(name) for name in clients])
    return replace(dataset, clients=number[dataset.clients], client_names=tuple(devices))


def client_names(config: RunConfig, dataset: Dataset) -> tuple[str, ...]:
    """The names of the clients [K] where the data say who holds what, and by names; numbers are no names."""
    names = dataset.client_names
    if config.data.partition != "given" or config.fleet.file is not None or all(name.isdigit() for name in names):
        return ()
    return names


def _device_names(config: RunConfig) -> list[str]:
    """The names of the fleet file's devices; empty where there is no such file."""
    path = config.fleet.file
    return [] if path is None else [device.name for device in fleet_file.read_fleet_file(path).devices]


def with_replacement(config: RunConfig, num_samples: int) -> bool:
    """Whether there are too few training samples for the clients, so that each client's samples are drawn with
    replacement."""
    data = config.data
    return data.partition != "given" and is_redrawn(num_samples, config.fleet.num_clients, data.min_samples)


def data_notes(config: RunConfig, dataset: Dataset) -> list[str]:
    """What a person should know: whether samples are drawn with replacement, whether the data decide who holds what, and
    whether floats look like pixels that nobody scaled."""
    notes = (_division_note(config, dataset), _pixel_note(config.data, dataset))
    return [note for note in notes if note]


def _division_note(config: RunConfig, dataset: Dataset) -> str | None:
    num_clients, num_samples, min_samples = config.fleet.num_clients, len(dataset.train_y), config.data.min_samples
    if with_replacement(config, num_samples):
        return (
            f"{num_clients:,} clients of at least {min_samples} samples need more than the {num_samples:,} that there are, so every "
            "client's samples are drawn with replacement: clients share samples"
        )
    if dataset.clients is None:
        return None
    if config.data.partition == "given":
        return _holder_note(config, dataset)
    return (
        f"the data say which client holds each sample, but data.partition is {config.data.partition!r} and deals them out "
        "anew; set data.partition=given to keep them where they are"
    )


def _holder_note(config: RunConfig, dataset: Dataset) -> str | None:
    """What to say where the data's clients and the fleet's devices have names, and none in common: who is taken for whom."""
    devices, clients = _device_names(config), dataset.client_names
    if not devices or set(devices) & set(clients) or all(name.isdigit() for name in clients):
        return None
    pairs = ", ".join(f"{client} is {device}" for client, device in zip(clients[:3], devices))
    return (
        f"the clients of the data are taken for the devices of {config.fleet.file} in order: {pairs}"
        f"{', ...' if len(clients) > 3 else ''}; give both the same names to be sure"
    )


def _pixel_note(data: DataConfig, dataset: Dataset) -> str | None:
    """A note where floats with the axes of images lie in 0..255 and not in 0..1, and nothing scales them."""
    if dataset.mean:
        return None
    return pixel_note(dataset.name, dataset.train_x, "normalise=True" if _is_given(data) else "data.normalise=true")


def charged_subset_note(config: RunConfig, num_samples: int, num_unlimited: int | None) -> str | None:
    """A note where the clock charges the samples that `data.limit` leaves, as if the data set had no more.

    num_samples, num_unlimited: training samples with the limit and without; None where no limit left any out."""
    if num_unlimited is None or num_unlimited <= num_samples or config.network.sample_scale != 1:
        return None
    return (
        f"data.limit leaves {num_samples:,} of {num_unlimited:,} training samples, and the clock charges these alone: seconds, and "
        f"cuts that are chosen by them, are not those of the whole set; set network.sample_scale={num_unlimited / num_samples:.6g} to "
        "charge the whole set"
    )


# --- what a plan needs to know


@dataclass(frozen=True)
class Survey:
    """What a plan needs to know of the data."""

    shape: tuple[int, ...]  # of a sample, as the model takes it
    num_classes: int
    num_samples: np.ndarray  # [K] of training, as the clock charges them
    notes: list[str]
    data: str  # in words
    client_names: tuple[str, ...] = ()  # [K] where the data name who holds them


OUTPUTS = {
    "classes": "in {} classes",
    "labels": "with {} labels",
    "numbers": "with {} numbers",
    "tokens": "of {} tokens",
    "pixels": "with pixels in {} classes",
}


def survey(config: RunConfig, given: Dataset | None = None) -> Survey:
    """Shape, classes and each client's samples, as a run of this config will have them."""
    dataset = read_data(config, given)
    counts = config.network.sample_scale * divide_samples(config, dataset).sizes
    shape = config.model.input or dataset.image_shape
    data_name = _describe_data(dataset.name, shape, dataset.num_classes, OUTPUTS[dataset.targets])
    subset_note = charged_subset_note(config, len(dataset.train_y), dataset.num_unlimited)
    notes = [*data_notes(config, dataset), *([subset_note] if subset_note else [])]
    return Survey(tuple(shape), dataset.num_classes, counts, notes, data_name, client_names(config, dataset))


def expected_samples(
    config: RunConfig,
    given: Dataset | None = None,
    *,
    shape: tuple[int, ...] | None = None,
    num_classes: int | None = None,
    samples_per_client: int | None = None,
    cost: bool = False,
) -> Survey:
    """What a plan needs to know: the arguments that are given, and the rest from the data set. Where nothing is
    missing, the data set is not read.

    cost: whether the model's costs are known, so that shape and classes are not needed."""
    whole = cost or (shape is not None and num_classes is not None)
    num_clients, scale = config.fleet.num_clients, config.network.sample_scale
    if samples_per_client is not None and whole:
        data_survey = Survey(
            (), 0, np.empty(0), [], "a saved cost table" if cost else _describe_data("data", shape or (), num_classes)
        )
    else:
        data_survey = _survey_or_facts(config, given)
    counts = data_survey.num_samples if samples_per_client is None else np.full(num_clients, scale * samples_per_client)
    return replace(
        data_survey,
        shape=shape or data_survey.shape,
        num_classes=num_classes or data_survey.num_classes,
        num_samples=counts,
        notes=data_survey.notes if samples_per_client is None else [],  # they are about the data's own samples
    )


def _survey_or_facts(config: RunConfig, given: Dataset | None = None) -> Survey:
    """As `survey`. Where a built-in data set is not on this machine, its published facts are taken, and an even part of
    its samples for each client."""
    try:
        return survey(config, given)
    except DataMissing as error:
        facts = FACTS.get(config.data.name)
        if facts is None:
            raise
        why = str(error)
    shape = _known_shape(config, facts)
    num_train = min(config.data.limit or facts.num_train, facts.num_train)
    counts = np.full(config.fleet.num_clients, config.network.sample_scale * num_train / config.fleet.num_clients)
    note = (
        f"{config.data.name} is not here, so each client is taken to hold an even part of its {num_train:,} training samples; "
        f"to plan with those that a run will have: {why}"
    )
    subset_note = charged_subset_note(config, num_train, facts.num_train)
    data_name = _describe_data(config.data.name, shape, facts.num_classes)
    return Survey(tuple(shape), facts.num_classes, counts, [note, *([subset_note] if subset_note else [])], data_name)


def sample_facts(config: RunConfig) -> tuple[tuple[int, ...], int]:
    """The shape of a sample as the model takes it and the number of classes; a built-in data set need not be here."""
    facts = FACTS.get(config.data.name)
    if facts is not None:
        return _known_shape(config, facts), facts.num_classes
    dataset = read_data(config)
    return tuple(config.model.input or dataset.image_shape), dataset.num_classes


def _known_shape(config: RunConfig, facts: Facts) -> tuple[int, ...]:
    channels, *sides = facts.shape
    sides = sides if config.data.image_size is None else [config.data.image_size] * 2
    return tuple(config.model.input or (channels, *sides))


def _describe_data(
    name: str, shape: tuple[int, ...], num_classes: int | None, outputs: str = OUTPUTS["classes"]
) -> str:
    return f"{name} (samples of {'x'.join(map(str, shape))} {outputs.format(num_classes)})"
