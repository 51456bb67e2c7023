"""What a framework is: `init` gives the first state, `round` turns a state into the next, `models` joins a state into whole models.

A framework keeps working memory between rounds, but no number of a round depends on it: numbers come from the state and from keys.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hsfl.codec_table import NONE, LinkChoices, allowed_links, choice_text
from hsfl.config import RunConfig
from hsfl.data.passes import RoundSteps
from hsfl.errors import InputError
from hsfl.models.state import Layout, TensorsByClient, UnitState
from hsfl.models.units import SplitModel
from hsfl.planning.rounds import participation
from hsfl.planning.rounds.round_clock import Extras
from hsfl.planning.world import World
from hsfl.training.batches import ClientData, Feed, PlannedBatch, no_observer
from hsfl.training.codecs.link_codecs import LinkCodecs, make_link_codecs
from hsfl.training.link import Link, LinkBytes
from hsfl.training.losses import CLASSIFY, Goal
from hsfl.training.norm_statistics import Estimator, Moments, NormBatches, NormLayers, NormShard
from hsfl.training.step import Part, learning_rate


@dataclass(frozen=True)
class Task:
    """All that a framework needs to know: the settings, the model, who has which data, and the cuts."""

    config: RunConfig
    model: SplitModel  # parts are copied from it; its own weights serve evaluation
    layout: Layout
    initial: UnitState
    feed: Feed
    cuts: tuple[int, ...]  # [K]
    arranged: "Arrangement"
    goal: Goal = CLASSIFY  # the loss that is trained
    counted: Mapping[int, np.ndarray] = field(
        default_factory=dict
    )  # [K] what clients count, in rounds that say it otherwise
    codecs: tuple[
        str, ...
    ] = ()  # [K] of smashed data and gradients, as in `link.codecs`, where clients have different ones

    @property
    def num_clients(self) -> int:
        return len(self.cuts)

    @property
    def one_cut(self) -> int:
        """The cut of frameworks that have one cut for all clients."""
        return self.arranged.one_cut

    @property
    def clusters(self) -> tuple[int, ...] | None:
        """The numbers of CPSL's clusters, which take turns in this order, [K]."""
        return self.arranged.clusters

    @property
    def away(self) -> tuple[int, ...]:
        """Clients that never take part."""
        return self.arranged.away

    @property
    def num_units(self) -> int:
        return self.layout.num_units

    @property
    def options(self) -> Any:
        """The settings `options.<framework>`, checked by the framework's own model."""
        return self.config.options.of(self.config.framework)

    def part(self, start: int, stop: int) -> Part:
        """The units `[start, stop)`, ready to be trained."""
        return Part(self.model, self.layout, start, stop, self.config.train, self.goal)

    def link(self) -> Link:
        """A link with the codecs of the settings, which has carried nothing yet. Where clients have different ones, `codec_of` has a client's."""
        links = list(allowed_links(self.config.link).values())
        return Link(make_link_codecs(links[0], self.model, self.layout))

    def codec_of(self) -> dict[str, LinkCodecs]:
        """The codecs of a link by their text in `codecs`."""
        links = allowed_links(self.config.link)
        made = {text: make_link_codecs(choices, self.model, self.layout) for text, choices in links.items()}
        model = next(iter(links.values())).model
        return {NONE: make_link_codecs(LinkChoices(model=model), self.model, self.layout)} | made

    def up_codecs(self) -> list[str]:
        """The codec of each client's smashed data, by its text, [K]."""
        links = {NONE: LinkChoices()} | allowed_links(self.config.link)
        up = {text: NONE if choices.up is None else choice_text(choices.up) for text, choices in links.items()}
        return [up[text] for text in self.codecs] or [list(up.values())[-1]] * self.num_clients

    def weights(self, round_index: int) -> np.ndarray:
        """What each client counts in the average of a round (0, 1, ...), [K]."""
        counted = self.counted.get(round_index)
        return participation.update_weights(self.config, round_index, self.feed.sizes) if counted is None else counted

    def most_weight(self, round_samples: int) -> int:
        """What the clients of a round with so many samples count together, at most."""
        return participation.most_weight(self.config, round_samples)

    def receivers(self, round_index: int) -> np.ndarray:
        """The clients that get the model of a round (0, 1, ...): all, or those that were to take part; never a client that stays away."""
        clients = np.arange(self.num_clients)
        if self.config.train.receivers == "chosen":
            clients = np.array(participation.choose_clients(self.config, round_index, self.feed.sizes), int)
        return clients[~np.isin(clients, self.away)] if self.away else clients

    def num_samples(self, clients: Iterable[int]) -> int:
        """How many training samples these clients hold together."""
        return sum(map(self.feed.num_samples, clients))

    def round_samples(self, clients: Sequence[int], round_index: int) -> int:
        """How many training samples these clients hold together, as far as they count in the round."""
        counted = self.counted.get(round_index)
        return self.num_samples(clients) if counted is None else int(counted[list(clients)].sum())

    def unobserved(self) -> "Task":
        """The same task with a feed whose batches nobody observes."""
        return replace(self, feed=replace(self.feed, on_batch=no_observer))

    def data(self, client: int) -> ClientData:
        """The data that a client sees: its own samples."""
        train = self.config.train
        return ClientData(self.feed, client, train.batch_size, train.local_epochs)

    def lr(self, round_index: int) -> float:
        """The learning rate of a round (0, 1, ...)."""
        return learning_rate(self.config.train, round_index)

    def batches(self, client: int, round_index: int, batch_size: int | None = None) -> list[PlannedBatch]:
        """A client's batches of a round; `feed.batch` gives the samples and targets of each."""
        train = self.config.train
        return self.feed.batches_of_round(client, round_index, batch_size or train.batch_size, train.local_epochs)

    def trained_samples(self, clients: Iterable[int], round_index: int) -> dict[int, int]:
        """How many samples each of these clients trains in a round where a batch has `train.batch_size` samples."""
        train = self.config.train
        return {
            k: RoundSteps(self.feed.num_samples(k), train.batch_size, train.local_epochs, round_index).total_samples
            for k in clients
        }


@dataclass(frozen=True)
class State:
    """What a round starts from: the states of units, by the name of their holder, other tensors (of optimisers, decoders), and what
    each client remembers from the rounds before."""

    units: dict[str, UnitState]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    memory: TensorsByClient = field(default_factory=TensorsByClient)  # of the clients that remember something

    def is_finite(self) -> bool:
        """Whether no weight and no other tensor holds an infinite value or NaN."""
        tensors = [
            *(units.floats for units in self.units.values()),
            *self.tensors.values(),
            *self.memory.flat().values(),
        ]
        return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


@dataclass(frozen=True)
class RoundResult:
    """What a round did besides changing the state."""

    train_loss: float | None  # the mean over samples; None if nobody trained
    num_samples: int
    bytes: LinkBytes


@dataclass(frozen=True)
class Arrangement:
    """What a framework settles before a run: its cut for all, who is in which cluster, and who stays away."""

    one_cut: int
    clusters: tuple[int, ...] | None = None  # [K]
    away: tuple[int, ...] = ()


class FrameworkBase:
    """Defaults that most frameworks keep."""

    copy_per_client = False  # the main server keeps a copy of its side for each client and averages once a round
    hands_on_heads = False  # clients take turns, so that a client must get the new head again to estimate statistics
    cuts: tuple[int, ...]

    def __init__(self, task: Task) -> None:
        self.task, self.cuts = task, task.cuts

    @classmethod
    def arrange(cls, config: RunConfig, world: World, one_cut: int, num_samples: np.ndarray) -> Arrangement:
        """Settle what stays the same through the run. one_cut: as the settings choose it. num_samples: [K], as the clock charges them."""
        return Arrangement(one_cut)

    def extras(self) -> Extras:
        """What the clock must know of a round besides the framework's row."""
        return Extras()

    @classmethod
    def why_averaged(cls, config: RunConfig) -> str | None:
        """Why BatchNorm's statistics cannot be estimated again in this framework; None where they can."""
        return f"{config.framework} does not say how its clients would estimate them"

    def batch_size(self, client: int) -> int:
        return self.task.config.train.batch_size

    def norm_moments(self, whole: UnitState, clients: Sequence[int], round_index: int) -> NormShard:
        """Some of a round's clients send batches forward through the new model: the head on the client, the tail at the main server.

        The main server has the moments of the tail at once; the client sends those of its head to the edge server.
        """
        task, link, num_units = self.task, self.task.link(), self.task.num_units
        layers, weights, count = NormLayers.of(task.model), task.weights(round_index), task.config.train.norm_batches
        moments, codecs = Moments.zero(layers), task.codec_of() if task.codecs else {}
        with Estimator(task.model, task.initial, whole, moments) as estimator:
            for k in clients:
                cut = self.cuts[k]
                link.codecs = codecs[task.codecs[k]] if task.codecs else link.codecs
                for x, fraction in NormBatches(task.feed, k, round_index, self.batch_size(k), count):
                    weight = fraction * float(weights[k])
                    smashed = estimator.forward(x, 0, cut, weight)
                    if cut < num_units:
                        estimator.forward(link.carry("client_main_up", smashed), cut, num_units, weight)
                link.bytes.merge(head_bytes(whole, layers, cut, self.hands_on_heads))
        return NormShard(moments, link.bytes)

    def norm_swapped(self) -> LinkBytes:
        """The bytes that the servers swap when all clients have sent batches forward: each sends its moments of the common units. Where
        heads are handed on, the servers first swap the units at which the cuts differ."""
        low, high = min(self.cuts), max(self.cuts)
        swapped = 2 * NormLayers.of(self.task.model).num_bytes(low, high)
        return LinkBytes(edge_main=swapped + self.hands_on_heads * self.task.initial[low:high].num_bytes)


class Framework(Protocol):
    """One published algorithm. `FrameworkBase` has `arrange` and `extras` as most frameworks need them."""

    cuts: tuple[int, ...]  # [K], as the framework uses them

    def __init__(self, task: Task) -> None: ...

    @classmethod
    def arrange(cls, config: RunConfig, world: World, one_cut: int, num_samples: np.ndarray) -> Arrangement: ...

    def extras(self) -> Extras: ...

    @classmethod
    def why_averaged(cls, config: RunConfig) -> str | None: ...

    def norm_moments(self, whole: UnitState, clients: Sequence[int], round_index: int) -> NormShard: ...

    def norm_swapped(self) -> LinkBytes: ...

    def init(self) -> State:
        """The state before the first round."""
        ...

    def round(self, state: State, kept: Sequence[int], round_index: int) -> tuple[State, RoundResult]:
        """The state after a round (0, 1, ...) in which the clients `kept` trained; the state given is not changed."""
        ...

    def models(self, state: State) -> Iterable[UnitState]:
        """The whole model, joined from its holders; a model for each client where clients keep heads of their own."""
        ...


def checked_round(framework: Framework, before: State, answer: object) -> tuple[State, RoundResult]:
    """The answer of a framework's `round`; refuses what is no State with a RoundResult, and a State that forgets what clients remember.

    before: the state from which the round started.
    """
    method_name = f"{type(framework).__name__}.round"
    if not isinstance(answer, tuple) or list(map(type, answer)) != [State, RoundResult]:
        raise InputError(f"{method_name} gives a {type(answer).__name__}; return a State and a RoundResult")
    state, result = answer
    if not isinstance(result.train_loss, float | int | None):
        raise InputError(
            f"{method_name} gives train_loss {result.train_loss!r}; give a number, such as float(loss), or None"
        )
    if lost := before.memory.keys() - state.memory.keys():
        raise InputError(
            f"{method_name} gives a State without the memory of client {min(lost)}; give the memory of super().round on"
        )
    return state, result


def whole_models(framework: Framework, state: State) -> Iterator[UnitState]:
    """The models that a framework's `models` gives, one at a time; an error where one of them lacks units, or where there is none."""
    method_name, models, count = f"{type(framework).__name__}.models", framework.models(state), 0
    if isinstance(models, UnitState) or not isinstance(models, Iterable):
        raise InputError(f"{method_name} gives a {type(models).__name__}; return a list of whole models, or yield them")
    for model in models:
        if not isinstance(model, UnitState):
            raise InputError(f"{method_name} gives a {type(model).__name__} among the models; give each as a UnitState")
        if (model.start, model.stop) != (0, model.layout.num_units):
            raise InputError(
                f"{method_name} gives the units {model.start} to {model.stop} of {model.layout.num_units}; join the holders' "
                "units with hsfl.frameworks.framework.join"
            )
        count += 1
        yield model
    if count == 0:
        raise InputError(f"{method_name} gives no model; give one at least")


def head_bytes(whole: UnitState, layers: NormLayers, cut: int, handed: bool) -> LinkBytes:
    """The bytes between a client and the edge server for an estimation: the moments of the head, and the new head where it is handed on."""
    down = whole[0:cut].num_bytes if handed else 0
    return LinkBytes(client_edge_up=layers.num_bytes(0, cut), client_edge_down=down)


def join(*holders: UnitState) -> UnitState:
    """The state of all units from the states of holders that together have them; where two overlap, the later one counts."""
    layout = holders[0].layout
    whole = UnitState.empty(layout, dtype=holders[0].floats.dtype, device=holders[0].floats.device)
    for holder in holders:
        whole[holder.start : holder.stop].copy_(holder)
    return whole


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the tensors."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def shared_cut(task: Task) -> int:
    """The cut of all clients in a framework whose clients share a server side, which keeps at least the last unit."""
    return min(task.one_cut, task.num_units - 1)
