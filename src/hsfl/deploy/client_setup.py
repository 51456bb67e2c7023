"""What a client prepares when it joins: its samples, the model that the main server describes, and its measured speed."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from hsfl import plugins
from hsfl.codec_table import UP, used_codecs
from hsfl.config import RunConfig
from hsfl.data import augment
from hsfl.data.readers.reader_base import FILE_FIELDS
from hsfl.data.registry import Dataset
from hsfl.deploy.device_limits import (
    OneHolder,
    check_images,
    check_seat,
    check_training,
    check_visits,
    made_within_memory,
)
from hsfl.deploy.model_kit import ModelKit, make_kit
from hsfl.deploy.settings import ClientSettings, client_data_settings, received_config
from hsfl.deploy.wire.client_messages import Welcome
from hsfl.errors import InputError
from hsfl.models.recipes import memory_format_of
from hsfl.runs.client_data import divide_samples, read_data
from hsfl.runs.prepare import make_images
from hsfl.training.batches import ClientData, Feed, Images
from hsfl.training.codecs.coding_speed import CODING_S, coding_seconds
from hsfl.training.speed import Speed, training_speed


@dataclass(frozen=True)
class ClientSetup:
    """The client's side of a run."""

    kit: ModelKit
    feed: Feed
    seat: int
    class_counts: tuple[int, ...]
    test: Images | None  # test samples that judge the model; None: there are none, or they are not asked for

    @property
    def data(self) -> ClientData:
        train = self.kit.config.train
        return ClientData(self.feed, self.seat, train.batch_size, train.local_epochs)

    def speed(self, seconds: float) -> Speed:
        """How fast this machine trains the model's real units, measured for about so many seconds."""
        kit = self.kit
        config, laid_out = kit.config, memory_format_of(kit.config.model)
        return training_speed(
            kit.model,
            kit.input_shape,
            kit.num_classes,
            config.train,
            seconds,
            check=check_training,
            memory_format=laid_out,
        )

    def coding_seconds(self, speed: Speed, seconds: float) -> dict[str, tuple[float, float]]:
        """Seconds to encode and decode a number, by codec of the settings, timed for about so many seconds each."""
        return coding_seconds(used_codecs(self.kit.config.link), speed.largest_message, UP, min(seconds, CODING_S))


def prepare_setup(settings: ClientSettings, welcome: Welcome) -> ClientSetup:
    """Read the client's samples and build the model."""
    plugins.load_plugins_of(settings.plugins)
    simulated = settings.as_client is not None
    config = received_config(welcome.settings, client_data_settings(settings), simulated, settings.model)
    check_seat(welcome.seat, config.fleet.num_clients)
    dataset = read_data(config if welcome.evaluates or simulated else _training_on_all(config))
    check_images(config, dataset)
    images = make_images(config, dataset, "train")
    augment.check_augmentation(config.data.augment, images.shape)
    if images.shape != tuple(welcome.input_shape) or dataset.num_classes != welcome.num_classes:
        raise InputError(
            f"the data have samples of {images.shape} in {dataset.num_classes} classes, and {tuple(welcome.input_shape)} in "
            f"{welcome.num_classes} are trained; change data.*, or ask the operator"
        )
    sample_indices = np.arange(len(images))
    if settings.as_client is not None:
        shares = divide_samples(config, dataset)
        if settings.as_client >= len(shares):
            raise InputError(f"as_client is {settings.as_client} but the run has {len(shares)} clients, from 0")
        sample_indices = shares[settings.as_client]
    check_visits(config, len(sample_indices))
    kit = made_within_memory(lambda: make_kit(config, tuple(welcome.input_shape), welcome.num_classes))
    _ = kit.shapes  # on the compute thread, which calls this
    counts = torch.bincount(images.y[torch.from_numpy(sample_indices)], minlength=welcome.num_classes)
    feed = Feed(images, OneHolder(welcome.seat, sample_indices), config.seed, config.data.augment)
    test = _test_images(config, dataset, settings.as_client) if welcome.evaluates else None
    return ClientSetup(kit, feed, welcome.seat, tuple(counts.tolist()), test)


def _training_on_all(config: RunConfig) -> RunConfig:
    """The config of a device that judges no model: where its file has no test samples, it withholds none from training, unless its settings
    say how many."""
    data = config.data
    if data.test_fraction is not None or data.name.partition(":")[0] not in FILE_FIELDS["test_fraction"]:
        return config
    return config.model_copy(update={"data": data.model_copy(update={"test_fraction": 0.0})})


def _test_images(config: RunConfig, dataset: Dataset, as_client: int | None) -> Images | None:
    """The client's test samples. as_client: this client of K takes every K-th sample, so that K clients share all of
    them; None takes all."""
    if not len(dataset.test_y):
        return None
    images = make_images(config, dataset, "test")
    if as_client is None:
        return images
    share = slice(as_client, None, config.fleet.num_clients)
    return replace(images, x=images.x[share], y=images.y[share])
