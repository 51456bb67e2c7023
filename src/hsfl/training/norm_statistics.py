"""BatchNorm's statistics, estimated again for a model that was averaged.

Averaged running statistics lag behind the weights, and a mean of variances lacks the variance between the clients' means. So clients send
batches forward through the new model, with BatchNorm in batch mode, and their moments are pooled. The pooled statistics serve tests and
exports; training goes on from the averaged ones.

Moments are taken about the running mean of the new model, which every party has, so that nothing cancels. Products of weight and moment are
counted as two integers each: whole numbers, and the rest in multiples of 2 ** -41. Sums of integers are exact, so they do not depend on the order
in which clients are counted, nor on who counts them. A client's batches weigh together what the client counts in the average of the round.

Legend: L layers, C channels over all layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hsfl.data.augment import AUGMENTATIONS
from hsfl.models.state import UnitState, bind_state
from hsfl.models.units import SplitModel
from hsfl.rng import stream
from hsfl.training.aggregate import WEIGHT_BITS, Diverged, device_of_doubles
from hsfl.training.batches import Feed, pass_positions
from hsfl.training.link import LinkBytes

Array = np.ndarray
REST_BITS = 41  # the rest of a product is counted in multiples of 2 to the minus this power
LARGEST_PRODUCT = 2.0**45  # of weight and moment, so that 2 ** 17 batches never overflow a sum
NUM_BYTES = 8  # of an integer on a link


@dataclass(frozen=True)
class NormLayers:
    """The BatchNorm layers of each unit that keep running statistics."""

    names: tuple[tuple[str, ...], ...]  # [num_units] in the whole model
    channels: tuple[tuple[int, ...], ...]  # [num_units]

    @classmethod
    def of(cls, model: SplitModel) -> "NormLayers":
        layers = [list(_layers(unit, prefix)) for unit, prefix in zip(model.units, model.prefixes)]
        return cls(
            tuple(tuple(name for name, _ in unit) for unit in layers),
            tuple(tuple(layer.num_features for _, layer in unit) for unit in layers),
        )

    @property
    def num_units(self) -> int:
        return len(self.names)

    @property
    def num_layers(self) -> int:
        return sum(map(len, self.names))

    def layers_before(self, unit: int) -> int:
        """How many layers the units `[0, unit)` have."""
        return sum(map(len, self.names[:unit]))

    def channels_before(self, unit: int) -> int:
        """How many channels the layers of the units `[0, unit)` have."""
        return sum(map(sum, self.channels[:unit]))

    def num_bytes(self, start: int, stop: int) -> int:
        """The bytes of the moments of the units `[start, stop)` on a link: four integers for each channel, two for each layer."""
        num_channels = self.channels_before(stop) - self.channels_before(start)
        return NUM_BYTES * (4 * num_channels + 2 * (self.layers_before(stop) - self.layers_before(start)))

    @property
    def moment_bits(self) -> tuple[float, ...]:
        """The bits of the moments of a head on a link, at each cut, [num_units + 1]."""
        return tuple(8.0 * self.num_bytes(0, cut) for cut in range(self.num_units + 1))


def _layers(unit: nn.Module, prefix: str) -> Iterator[tuple[str, nn.modules.batchnorm._BatchNorm]]:
    for name, module in unit.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            yield (prefix + name).removesuffix("."), module


@dataclass(frozen=True)
class Moments:
    """Sums over batches and clients of the weighted moments of the layers of units `[start, stop)`. Slicing by units gives a view.

    The arrays are NumPy's, so that moments cross the border of a process as plain numbers.
    """

    layers: NormLayers
    start: int
    stop: int
    sums: Array  # int64 [4, C]: whole numbers and rests, of weight x deviation and of weight x squared deviation
    weights: (
        Array  # int64 [2, L]: weights in multiples of 2 ** -WEIGHT_BITS; and how many values of a channel were counted
    )

    @classmethod
    def zero(cls, layers: NormLayers) -> "Moments":
        num_channels = layers.channels_before(layers.num_units)
        sums, weights = np.zeros((4, num_channels), np.int64), np.zeros((2, layers.num_layers), np.int64)
        return cls(layers, 0, layers.num_units, sums, weights)

    def __getitem__(self, units: slice) -> "Moments":
        start, stop = units.start, units.stop
        assert self.start <= start <= stop <= self.stop, f"units {start}:{stop} of {self.start}:{self.stop}"
        first, last = (self.layers.channels_before(u) - self.layers.channels_before(self.start) for u in (start, stop))
        top, end = (self.layers.layers_before(u) - self.layers.layers_before(self.start) for u in (start, stop))
        return Moments(self.layers, start, stop, self.sums[:, first:last], self.weights[:, top:end])

    @property
    def num_bytes(self) -> int:
        """The bytes on the link between the servers."""
        return self.sums.nbytes + self.weights.nbytes

    def merge(self, other: "Moments") -> None:
        """Add the moments of another server, or of other clients, over some of our units."""
        section = self[other.start : other.stop]
        section.sums[...] += other.sums
        section.weights[...] += other.weights

    def add(self, layer: int, channels: slice, mean: Array, variance: Array, weight: float, num_values: int) -> None:
        """Add what one layer saw of one batch. layer, channels: the layer's place among all. mean: of each channel, less the running
        mean. variance: of each channel, biased. num_values: of a channel in the batch."""
        counted = round(weight * 2.0**WEIGHT_BITS)
        weight = counted / 2.0**WEIGHT_BITS
        for row, values in ((0, weight * mean), (2, weight * (variance + mean * mean))):
            if not (np.abs(values) <= LARGEST_PRODUCT).all():
                raise Diverged(
                    f"the inputs of BatchNorm layer {layer + 1} are too large to be pooled, or no numbers; lower train.lr, or "
                    "normalise the data"
                )
            whole = np.rint(values)
            self.sums[row, channels] += whole.astype(np.int64)
            self.sums[row + 1, channels] += np.rint((values - whole) * 2.0**REST_BITS).astype(np.int64)
        self.weights[:, layer] += (counted, num_values)

    def pooled(self, whole: UnitState) -> UnitState:
        """A copy of the model about whose running means the moments were taken, with the pooled statistics instead of the running ones.
        A layer that saw nothing keeps its own. The variance is unbiased, as torch's running variance is."""
        assert (self.start, self.stop) == (whole.start, whole.stop)
        after = whole.clone()
        tensors, end = after.named(), 0
        names = chain.from_iterable(self.layers.names)
        for layer, (name, num_channels) in enumerate(zip(names, chain.from_iterable(self.layers.channels))):
            begin, end = end, end + num_channels
            counted, num_values = self.weights[:, layer].tolist()
            if not counted:
                continue
            totals = self.sums[::2, begin:end] + self.sums[1::2, begin:end] * 2.0**-REST_BITS
            mean, square = totals / (counted / 2.0**WEIGHT_BITS)
            variance = np.maximum(square - mean * mean, 0.0) * (num_values / max(num_values - 1, 1))
            running = tensors[f"{name}.running_mean"]
            running.copy_(torch.from_numpy(_array(running) + mean))
            tensors[f"{name}.running_var"].copy_(torch.from_numpy(variance))
        return after


@dataclass(frozen=True)
class NormShard:
    """What some clients of a round gave for the statistics. Shards can be computed anywhere and merged in any order."""

    moments: Moments
    bytes: LinkBytes = field(default_factory=LinkBytes)

    def merge(self, other: "NormShard") -> None:
        self.moments.merge(other.moments)
        self.bytes.merge(other.bytes)


def _array(tensor: Tensor) -> Array:
    """The numbers of a tensor in float64; mps has no such numbers, so they are moved first."""
    array: Array = tensor.detach().cpu().double().numpy()
    return array


@dataclass(frozen=True)
class NormBatches:
    """The batches that a client sends forward in a round: the first `count` of a random order of its samples, keyed by seed, client and
    round."""

    feed: Feed
    client: int
    round_index: int
    batch_size: int
    count: int

    @property
    def positions(self) -> list[Array]:
        rng = stream(self.feed.seed, "norm statistics", self.client, self.round_index)
        return pass_positions(self.feed.num_samples(self.client), self.batch_size, rng)[: self.count]

    def __iter__(self) -> Iterator[tuple[Tensor, float]]:
        """Each batch, augmented as in training, and its part of all samples that the client sends."""
        feed, positions = self.feed, self.positions
        seen = sum(map(len, positions))
        for step, batch_positions in enumerate(positions):
            x = feed.images.x[torch.from_numpy(feed.indices[self.client][batch_positions]).to(feed.images.y.device)]
            if feed.augment != "none":
                key = ("norm statistics augment", self.client, self.round_index, step)
                x = AUGMENTATIONS[feed.augment](x, stream(feed.seed, *key))
            yield feed.images.floats(x), len(batch_positions) / seen


def num_seen(num_samples: int, batch_size: int, count: int) -> int:
    """How many of its samples a client sends in `count` batches; a single sample that is left over joins the last batch."""
    return num_samples if num_samples <= count * batch_size + 1 else count * batch_size


class Estimator:
    """Sends batches forward through a whole model and adds the moments of every BatchNorm layer to a sum.

    BatchNorm normalises by the statistics of the batch; all else is as in a test. Nothing is written to the model. Outside of the
    `with` block the model holds the weights that it had before.
    """

    def __init__(self, model: SplitModel, initial: UnitState, whole: UnitState, moments: Moments) -> None:
        self.model, self.initial, self.whole, self.moments = model, initial, whole, moments
        self.weight = 0.0
        self.handles: list[Any] = []
        self.layers: list[nn.modules.batchnorm._BatchNorm] = []

    def __enter__(self) -> "Estimator":
        bind_state(self.whole, self.model)
        self.model.eval()
        pairs = zip(self.model.units, self.model.prefixes)
        self.layers = [layer for unit, prefix in pairs for _, layer in _layers(unit, prefix)]
        ends = list(accumulate((layer.num_features for layer in self.layers), initial=0))
        for number, layer in enumerate(self.layers):
            assert layer.running_mean is not None
            shift, channels = _array(layer.running_mean), slice(ends[number], ends[number + 1])
            layer.training, layer.track_running_stats = True, False  # batch statistics, and no buffer is written
            self.handles.append(layer.register_forward_pre_hook(partial(self._record_moments, number, channels, shift)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for handle in self.handles:
            handle.remove()
        for layer in self.layers:
            layer.training, layer.track_running_stats = False, True
        bind_state(self.initial, self.model)

    @torch.no_grad()
    def forward(self, x: Tensor, start: int, stop: int, weight: float) -> Tensor:
        """A batch through the units `[start, stop)`. weight: what the batch counts."""
        self.weight = weight
        for unit in self.model.units[start:stop]:
            x = unit(x)
        return x

    def _record_moments(
        self, number: int, channels: slice, shift: Array, layer: nn.Module, inputs: Sequence[Tensor]
    ) -> None:
        x = inputs[0].detach()
        wide = x.to(device_of_doubles(x)).double()
        variance, mean = torch.var_mean(wide, [axis for axis in range(x.ndim) if axis != 1], correction=0)
        num_values = x.numel() // x.shape[1]
        self.moments.add(number, channels, _array(mean) - shift, _array(variance), self.weight, num_values)
