"""From a config to a bench: data, partition, model and cuts."""

import copy
from dataclasses import dataclass

import numpy as np
import torch

from hsfl.config import OWN_MODEL, RunConfig
from hsfl.data import augment
from hsfl.data.datasets import Dataset, load
from hsfl.data.partition import partition
from hsfl.errors import InputError
from hsfl.frameworks import find_framework
from hsfl.frameworks.base import Task
from hsfl.methods import copy_per_client_names, method
from hsfl.models.state import Layout, read_state
from hsfl.models.units import SplitModel
from hsfl.models.weights import load_init_weights
from hsfl.models.zoo import build
from hsfl.planning.cuts import check_cuts, choose_cuts, choose_one_cut, planned_cuts
from hsfl.planning.world import World, count_batches, make_world
from hsfl.rng import stream, torch_seed
from hsfl.training.batches import Feed, Images, resized


@dataclass(frozen=True)
class Bench:
    """A task with its test images and the world it takes place in."""

    task: Task
    test: Images
    num_classes: int
    class_names: tuple[str, ...]
    world: World
    num_samples: np.ndarray  # [K] of training, as the clock charges them
    plan_note: str | None = None  # what to say of a search for cuts that its time limit stopped


def prepare(
    config: RunConfig,
    dataset: Dataset | None = None,
    model: SplitModel | None = None,
    cuts: tuple[int, ...] | None = None,
) -> Bench:
    """Data, partition, model and cuts for a config. A data set or model of one's own may be given instead, and the cuts
    that a run chose before."""
    device = _device(config.device)
    row = method(config.framework)
    if config.train.proximal_mu and not row.copy_per_client:
        raise InputError(
            f"train.proximal_mu is {config.train.proximal_mu} but {config.framework} does not train a copy per client; "
            f"set it to 0 or choose {', '.join(copy_per_client_names())}"
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
    own_model = model
    model = (copy.deepcopy(own_model) or _model(config, train.shape, num_classes)).to(device).eval()
    _check_outputs(model, train, num_classes)
    shares = _shares(config, dataset.train_y)
    _check_smallest_batch(config, model, train, shares)
    world = make_world(config, train.shape, num_classes, own_model)
    batch_size = config.train.batch_size
    num_samples = config.network.sample_scale * np.array([len(share) for share in shares])
    num_batches = count_batches(config, num_samples)
    plan_note, how = None, (config.fleet, config.allocation, world, batch_size, num_batches, config.options)
    if cuts is not None:
        check_cuts("the run's cuts (cuts.json)", cuts, config.fleet.min_cut, world)
    elif config.fleet.cuts == "planned":
        cuts, plan_note = planned_cuts(*how)
    else:
        cuts = choose_cuts(*how)
    one_cut = choose_one_cut(config.fleet, world, cuts, batch_size, num_batches)
    feed = Feed(train, shares, config.seed, config.data.augment)
    arranged = find_framework(config.framework).arrange(config, world, one_cut, num_samples)
    task = Task(config, model, Layout.of(model), read_state(model), feed, cuts, arranged)
    return Bench(task, test, num_classes, dataset.classes, world, num_samples, plan_note)


def client_shares(config: RunConfig) -> list[np.ndarray]:
    """The indices of each client's training samples, [K]."""
    return _shares(config, _load(config).train_y)


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
        options=config.options.of(data.name.partition(":")[0]),
    )


def _images(dataset: Dataset, side: str, config: RunConfig, device: torch.device) -> Images:
    x, y = (dataset.train_x, dataset.train_y) if side == "train" else (dataset.test_x, dataset.test_y)
    if not len(y):
        raise InputError(
            f"{dataset.name} has no {side} images; give it more images (a class of one is for training alone)"
        )
    images = torch.from_numpy(x)
    if config.model.input is not None and x.dtype != np.uint8:
        raise InputError(f"model.input resizes images but {dataset.name} holds numbers of {x.shape[1:]}; leave it out")
    if config.model.input is not None:
        channels, *size_list = config.model.input
        if channels != x.shape[1]:
            raise InputError(
                f"model.input has {channels} channels but {dataset.name} has {x.shape[1]}; change the first number"
            )
        images = resized(images, (size_list[0], size_list[1]))
    return Images(images.to(device), torch.from_numpy(y).to(device), dataset.mean, dataset.std)


def _model(config: RunConfig, input_shape: tuple[int, ...], num_classes: int) -> SplitModel:
    settings = config.model
    if settings.name == OWN_MODEL:
        raise InputError(
            "this run's model was given from Python; go on from there: hsfl.run(config, folder, model=...)"
        )
    seed, options = torch_seed(config.seed, "weights"), config.options.of(settings.name)
    model = build(
        settings.name, input_shape, num_classes, settings.norm, settings.stem, seed, settings.dropout, options
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


def _check_outputs(model: SplitModel, train: Images, num_classes: int) -> None:
    """A model of one's own must take these images and tell these classes apart."""
    try:
        with torch.no_grad():
            shape = tuple(model(train.floats(train.x[:1])).shape)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"the model does not take samples of {train.shape}: {reason}; change its first unit") from None
    if len(shape) != 2 or shape[1] < num_classes:
        raise InputError(f"the model gives {shape[1:]} numbers for a sample, but there are {num_classes} classes")


def _check_smallest_batch(config: RunConfig, model: SplitModel, train: Images, shares: list[np.ndarray]) -> None:
    """BatchNorm on a single value per channel cannot train: a deep model on a batch of one small image."""
    fewest = min(map(len, shares)) if not method(config.framework).pools_data else sum(map(len, shares))
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
