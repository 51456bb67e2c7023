"""From a config to a bench: data, partition, model and cuts."""

import copy
from dataclasses import dataclass

import numpy as np
import torch

from hsfl.config import FleetConfig, RunConfig
from hsfl.data import augment
from hsfl.data.datasets import Dataset, load
from hsfl.data.partition import partition
from hsfl.errors import InputError, known
from hsfl.frameworks import COPY_PER_CLIENT, FRAMEWORKS
from hsfl.frameworks.base import Task
from hsfl.models.state import Layout, read_state
from hsfl.models.units import SplitModel
from hsfl.models.weights import load_init_weights
from hsfl.models.zoo import build
from hsfl.rng import stream, torch_seed
from hsfl.training.feed import Feed, Images


@dataclass(frozen=True)
class Bench:
    """A task with its test images."""

    task: Task
    test: Images
    num_classes: int
    class_names: tuple[str, ...]


def prepare(config: RunConfig, dataset: Dataset | None = None, model: SplitModel | None = None) -> Bench:
    """Data, partition, model and cuts for a config; a data set or model of one's own may be given instead."""
    device = _device(config.device)
    known("framework", config.framework, FRAMEWORKS)
    if config.train.proximal_mu and config.framework not in COPY_PER_CLIENT:
        raise InputError(
            f"train.proximal_mu is {config.train.proximal_mu} but {config.framework} does not train a copy per client; "
            f"set it to 0 or choose {', '.join(COPY_PER_CLIENT)}"
        )
    if (config.train.clients_per_round or 0) > config.fleet.num_clients:
        raise InputError(
            f"train.clients_per_round is {config.train.clients_per_round} but there are {config.fleet.num_clients} "
            "clients; lower it, or leave it out for all"
        )
    dataset = dataset or _load(config)
    train, test = (_images(dataset, side, config, device) for side in ("train", "test"))
    augment.check(config.data.augment, train.shape)
    num_classes = len(dataset.classes)
    model = (model or _model(config, train.shape, num_classes)).to(device).eval()
    shares = _shares(config, dataset.train_y)
    cuts = choose_cuts(config.fleet, model, config.seed)
    _check_smallest_batch(config, model, train, shares)
    feed = Feed(train, shares, config.seed, config.data.augment)
    task = Task(config, model, Layout.of(model), read_state(model), feed, cuts)
    return Bench(task, test, num_classes, dataset.classes)


def _device(name: str) -> torch.device:
    ready = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not ready[name]:
        raise InputError(f"device is {name!r} but torch sees none here; set device=cpu")
    return torch.device(name)


def _load(config: RunConfig) -> Dataset:
    data = config.data
    return load(
        data.name,
        data.dir,
        limit=data.limit,
        limit_test=data.limit_test,
        rng=stream(config.seed, "data limit"),
        image_size=data.image_size,
        split=data.split,
    )


def _images(dataset: Dataset, side: str, config: RunConfig, device: torch.device) -> Images:
    x, y = (dataset.train_x, dataset.train_y) if side == "train" else (dataset.test_x, dataset.test_y)
    size = None
    if config.model.input is not None:
        channels, *size_list = config.model.input
        if channels != x.shape[1]:
            raise InputError(
                f"model.input has {channels} channels but {dataset.name} has {x.shape[1]}; change the first number"
            )
        size = (size_list[0], size_list[1])
    return Images(torch.from_numpy(x).to(device), torch.from_numpy(y).to(device), dataset.mean, dataset.std, size=size)


def _model(config: RunConfig, input_shape: tuple[int, int, int], num_classes: int) -> SplitModel:
    settings = config.model
    seed = torch_seed(config.seed, "weights")
    model = build(
        settings.name, input_shape, num_classes, settings.norm, settings.stem, seed=seed, dropout=settings.dropout
    )
    if settings.init_weights is not None:
        load_init_weights(model, settings.init_weights)
    return model


def _shares(config: RunConfig, labels: np.ndarray) -> list[np.ndarray]:
    data = config.data
    options = {"dirichlet": {"alpha": data.alpha}, "quantity_skew": {"alpha": data.alpha}}
    options["shards"] = {"classes_per_client": data.classes_per_client}
    rng = stream(config.seed, "partition")
    chosen = options.get(data.partition, {})
    return partition(labels, config.fleet.num_clients, data.partition, rng, min_samples=data.min_samples, **chosen)


def _check_smallest_batch(config: RunConfig, model: SplitModel, train: Images, shares: list[np.ndarray]) -> None:
    """BatchNorm on a single value per channel cannot train: a deep model on a batch of one small image."""
    fewest = min(map(len, shares)) if config.framework != "cl" else sum(map(len, shares))
    if min(fewest, config.train.batch_size) > 1:
        return
    try:
        copy.deepcopy(model).train()(train.floats(train.x[:1]))
    except ValueError:
        raise InputError(
            f"{config.model.name} with BatchNorm cannot train on a batch of one sample, and train.batch_size is "
            f"{config.train.batch_size} and the smallest client has {fewest}; raise train.batch_size and "
            "data.min_samples to 2, or set model.norm=group"
        ) from None


def choose_cuts(fleet: FleetConfig, model: SplitModel, seed: int) -> tuple[int, ...]:
    """The cut of each client [K]: given, or as deep as each client can hold."""
    max_cuts = _max_cuts(fleet, model, seed)
    wanted = max_cuts if fleet.cuts == "max_cut" else _one_each("fleet.cuts", fleet.cuts, fleet.num_clients)
    for k, (cut, max_cut) in enumerate(zip(wanted, max_cuts)):
        model.check_cut(cut, f"fleet.cuts[{k}]")
        if not fleet.min_cut <= cut:
            raise InputError(
                f"fleet.cuts[{k}] is {cut}, below fleet.min_cut = {fleet.min_cut}; raise it, or lower min_cut"
            )
        if cut > max_cut:
            raise InputError(f"fleet.cuts[{k}] is {cut} but this client's max_cut is {max_cut}; lower the cut")
    return wanted


def _max_cuts(fleet: FleetConfig, model: SplitModel, seed: int) -> tuple[int, ...]:
    model.check_cut(fleet.min_cut, "fleet.min_cut")
    if fleet.max_cut is None and fleet.cuts != "max_cut":
        return (model.num_units,) * fleet.num_clients
    if fleet.max_cut is None:
        low = max(min(3, model.num_units), fleet.min_cut)
        drawn = stream(seed, "max_cut").integers(low, model.num_units, size=fleet.num_clients, endpoint=True)
        return tuple(int(cut) for cut in drawn)
    max_cuts = _one_each("fleet.max_cut", fleet.max_cut, fleet.num_clients)
    for k, cut in enumerate(max_cuts):
        model.check_cut(cut, f"fleet.max_cut[{k}]")
    return max_cuts


def _one_each(name: str, value: int | tuple[int, ...] | str, num_clients: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * num_clients
    assert not isinstance(value, str)
    if len(value) != num_clients:
        raise InputError(
            f"{name} has {len(value)} numbers but there are {num_clients} clients; give one number or one each"
        )
    return value
