"""From a config to what a run needs: data, model and world, each by itself, and all of them together as a bench.

Whoever needs less takes less: testing a model takes `read_data`, `make_images` and `make_model`, exporting a model takes
`make_model` alone, and a plan takes a world from `hsfl.planning.world` alone.
"""

import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hsfl.codec_table import allowed_links
from hsfl.config import OWN_MODEL, RunConfig
from hsfl.data import augment
from hsfl.data.partition import Holdings
from hsfl.data.passes import steps_of_round
from hsfl.data.registry import Dataset, class_counts_of
from hsfl.engines.engine import Exam
from hsfl.errors import InputError
from hsfl.formats import count, size
from hsfl.framework_table import method
from hsfl.frameworks import find_framework
from hsfl.frameworks.framework import FrameworkBase, Task
from hsfl.models.model_checks import check_fits, check_weights
from hsfl.models.recipes import memory_format_of
from hsfl.models.split.module_split import ModuleSplit
from hsfl.models.state import Layout, read_state
from hsfl.models.units import SplitModel
from hsfl.models.weights_file import load_init_weights
from hsfl.models.zoo import build
from hsfl.network.devices import MANY_CLIENTS
from hsfl.planning.cuts import check_codecs, check_cuts, choose_cuts, choose_one_cut, given_rows
from hsfl.planning.fair_defaults import without_auto
from hsfl.planning.rounds.allocators import policy_of
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.rounds.round_clock import Extras
from hsfl.planning.world import World, count_batches, make_world
from hsfl.rng import torch_seed
from hsfl.runs.checks.unused_settings import refuse_wherever_given
from hsfl.runs.client_data import charged_subset_note, client_names, data_notes, divide_samples, read_data
from hsfl.runs.method_extras import charged_hooks, method_extras
from hsfl.runs.run_folder.records import CutsRecord
from hsfl.tasks import check_loss, find_task
from hsfl.training.attack import LabelFlip, attackers
from hsfl.training.batches import Feed, Images, resized
from hsfl.training.losses import Goal
from hsfl.training.norm_statistics import NormLayers

MOST_UNCOUNTED = 0.02  # the size of a sample's targets as a part of its smashed data, of which nothing is said
MOST_LEFT = 0.1  # the part of BatchNorm's first statistics that may be left without a warning


@dataclass(frozen=True)
class Bench:
    """A task for a framework, the test images that judge its model, and the world in which its rounds take time."""

    task: Task
    test: Images
    class_names: tuple[str, ...]
    num_outputs: int  # that the model gives for a sample (or token, or pixel)
    world: World
    num_samples: np.ndarray  # [K] training samples, as the clock charges them
    notes: tuple[str, ...] = ()  # what a person should know before the run
    plan_note: str | None = None  # what to say of a search for cuts that its time limit stopped
    subset_note: str | None = None  # what to say of a clock that charges the samples that data.limit leaves

    @property
    def cuts(self) -> CutsRecord:
        """The cuts that were given or chosen, for another bench of the same run."""
        return CutsRecord(list(self.task.cuts), self.plan_note, list(self.task.codecs) or None)

    @property
    def exam(self) -> Exam:
        task = self.task
        return Exam(task.model, task.initial, self.test, self.num_outputs, task.goal)


def prepare(
    config: RunConfig,
    dataset: Dataset | None = None,
    model: SplitModel | None = None,
    cuts: CutsRecord | None = None,
) -> Bench:
    """Everything that a run of this config needs.

    dataset, model: given from Python instead of those that the config names; the model is copied.
    cuts: the cuts that were chosen for this run before, and are not searched again.
    """
    config = without_auto(config)
    _check_settings(config)
    dataset = read_data(config, dataset)
    train, test = (make_images(config, dataset, side) for side in ("train", "test"))
    pixel_shape = tuple(train.y.shape[1:]) if dataset.targets == "pixels" else None
    augment.check_augmentation(config.data.augment, train.shape, pixel_shape)
    indices = divide_samples(config, dataset)
    if model is not None:
        check_weights(model)
    fitted = copy.deepcopy(model) or make_model(config, train.shape, dataset.num_classes, config.model.certify)
    fitted = fitted.to(find_device(config.device)).eval()
    goal = find_goal(config, dataset)
    check_fits(fitted, _largest(train, dataset), dataset.num_classes, goal.row.targets, pixel_shape)
    _check_loss(goal, fitted, train, dataset.num_classes)
    _check_smallest_batch(config, fitted, train, indices)
    _check_norm(config, fitted)
    split = model or (fitted if isinstance(fitted, ModuleSplit) else None)  # measured as it is, not split once more
    world = make_world(config, train.shape, dataset.num_classes, split).named(client_names(config, dataset))
    num_samples = config.network.sample_scale * indices.sizes
    feed = Feed(train, indices, config.seed, config.data.augment, _label_flip(config, dataset))
    extras = _searched_extras(config, fitted, feed, world, num_samples, goal)
    chosen, plan_note = _cuts(config, extras.charged(world), num_samples, extras.passes, cuts)
    search = CutTask(config, extras.charged(world), extras.passes * count_batches(config, num_samples))
    chosen_cuts, codecs = tuple(world.cost.cuts_of(chosen).tolist()), world.codecs_of(np.array(chosen))
    one_cut = choose_one_cut(search, chosen_cuts)
    task = replace(_make_task(config, fitted, feed, world, num_samples, chosen_cuts, one_cut, goal), codecs=codecs)
    notes = (*data_notes(config, dataset), *_norm_notes(config, fitted, indices), *_receiver_notes(config))
    if pixel_shape is not None:
        notes = (*notes, *_pixel_notes(config, dataset, world))
    subset_note = charged_subset_note(config, len(dataset.train_y), dataset.num_unlimited)
    return Bench(task, test, dataset.classes, dataset.num_classes, world, num_samples, notes, plan_note, subset_note)


def _cuts(
    config: RunConfig, world: World, num_samples: np.ndarray, passes: int, before: CutsRecord | None
) -> tuple[tuple[int, ...], str | None]:
    """The rows [K] that were chosen before, or are chosen now, and what to say of a search that its time limit stopped."""
    if before is not None:
        cuts = check_cuts("the run's cuts (cuts.json)", tuple(before.cuts), config.fleet.min_cut, world)
        check_codecs(config, world)
        if before.codecs is None and config.link.codecs is not None:
            return given_rows(config, world, cuts), before.note
        if (len(before.codecs or cuts) != len(cuts)) or (before.codecs is None and world.own_codecs):
            raise InputError(
                f"the run's cuts (cuts.json) have {len(before.codecs or ())} codecs for {len(cuts)} clients; put the original file back"
            )
        return tuple(world.rows_of(cuts, before.codecs or ()).tolist()), before.note
    return choose_cuts(CutTask.of_run(config, world, num_samples, passes))


def _searched_extras(
    config: RunConfig, model: SplitModel, feed: Feed, world: World, num_samples: np.ndarray, goal: Goal
) -> Extras:
    """What the framework sends and trains besides HSFL's round, where cuts are searched that must count it."""
    is_searched = {"planned", "fastest"} & {str(config.fleet.cuts), str(config.fleet.one_cut)}
    if not is_searched or not charged_hooks(config.framework):
        return Extras()
    deepest = tuple(world.fleet.max_cut.tolist())
    return method_extras(_make_task(config, model, feed, world, num_samples, deepest, min(deepest), goal))


def _make_task(
    config: RunConfig,
    model: SplitModel,
    feed: Feed,
    world: World,
    num_samples: np.ndarray,
    cuts: tuple[int, ...],
    one_cut: int,
    goal: Goal,
) -> Task:
    """The task, with what the framework settles before a run."""
    arranged = find_framework(config.framework).arrange(config, world, one_cut, num_samples)
    return Task(config, model, Layout.of(model), read_state(model), feed, cuts, arranged, goal)


def find_goal(config: RunConfig, dataset: Dataset) -> Goal:
    """What is learned: `train.task` and `train.loss` where they are given, else as the data have it."""
    row = find_task(config.train.task or dataset.task)
    if row.targets != dataset.targets:
        raise InputError(
            f"train.task is {row.name!r} but {dataset.name} has targets for {dataset.task}; leave it out, or change the data"
        )
    check_loss(row, config.train.loss)
    return Goal(row.name, config.train.loss)


def _largest(train: Images, dataset: Dataset) -> Tensor:
    """A sample to try a model on; a sample of tokens holds the last token of the vocabulary."""
    sample = train.floats(train.x[:1]).clone()
    if dataset.vocabulary is not None:
        sample.view(-1)[0] = dataset.vocabulary - 1
    return sample


def _label_flip(config: RunConfig, dataset: Dataset) -> LabelFlip | None:
    """The clients whose labels a simulated attack flips."""
    if config.attack.kind != "label_flip":
        return None
    if dataset.targets != "classes":
        raise InputError(
            f"attack.kind is 'label_flip' but {dataset.name} has {dataset.targets}, not classes; take sign_flip, scaled_update or noise"
        )
    return LabelFlip(attackers(config), dataset.num_classes)


def _check_loss(goal: Goal, model: SplitModel, train: Images, num_outputs: int) -> None:
    """Try a plugin's loss and metrics on two samples: a wrong result is refused before anything is written."""
    if (callable(goal.row.loss) and goal.loss is None) or any(metric.function for metric in goal.row.metrics):
        with torch.no_grad():
            output, target = copy.deepcopy(model).eval()(train.floats(train.x[:2])), train.targets(slice(2))
            goal(output, target)
            goal.sums(output, target, num_outputs)


def make_images(config: RunConfig, dataset: Dataset, side: str) -> Images:
    """The training or test samples (`side` is "train" or "test") on the config's device, resized to `model.input`."""
    device = find_device(config.device)
    x, y = (dataset.train_x, dataset.train_y) if side == "train" else (dataset.test_x, dataset.test_y)
    if not len(y):
        raise InputError(
            f"{dataset.name} has no {side} samples; give it more (a class of one sample has no test sample)"
            f"{', or leave data.test_fraction=0 out, which withholds none' if config.data.test_fraction == 0 else ''}"
        )
    samples = torch.from_numpy(x)
    if config.model.input is not None:
        _, height, width = input_shape(config, dataset)
        samples = resized(samples, (height, width))
    x_there, y_there = samples.to(device), torch.from_numpy(y).to(device)
    return Images(x_there, y_there, dataset.mean, dataset.std, memory_format=memory_format_of(config.model))


def input_shape(config: RunConfig, dataset: Dataset) -> tuple[int, ...]:
    """The shape of one sample as the model gets it: `model.input` where it is given, else that of the data set."""
    shape, wanted = dataset.image_shape, config.model.input
    if wanted is None:
        return shape
    if dataset.train_x.dtype != np.uint8:
        raise InputError(f"model.input resizes images but {dataset.name} holds numbers of {shape}; leave it out")
    if dataset.targets == "pixels":
        raise InputError(
            f"model.input resizes images but {dataset.name} has a class for each pixel; resize both yourself, and leave it out"
        )
    if wanted[0] != shape[0]:
        raise InputError(
            f"model.input has {wanted[0]} channels but {dataset.name} has {shape[0]}; change the first number"
        )
    return wanted


def make_model(config: RunConfig, input_shape: tuple[int, ...], num_classes: int, certify: bool = False) -> SplitModel:
    """The model that the config names, with its first weights, on the CPU. certify: whether a module that is split is compared
    with its units."""
    settings = config.model
    if settings.name == OWN_MODEL:
        raise InputError(
            "this run's model was given from Python; go on from there: hsfl.run(config, folder, model=...)"
        )
    seed, options = torch_seed(config.seed, "weights"), config.options.of(settings.name)
    model = build(
        settings.name, input_shape, num_classes, settings.norm, settings.stem, seed, settings.dropout, options, certify
    )
    if settings.init_weights is not None:
        load_init_weights(model, settings.init_weights)
    return model


def find_device(name: str) -> torch.device:
    """The device "cpu", "cuda" or "mps"; one that torch does not see is an error."""
    ready = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not ready[name]:
        raise InputError(f"device is {name!r} but torch sees none here; set device=cpu")
    return torch.device(name)


def _check_settings(config: RunConfig) -> None:
    """Refuse settings that are wrong whatever the data and the model are."""
    find_device(config.device)
    _check_policy(config)
    allowed_links(config.link)
    refuse_wherever_given(config)
    clients_per_round, num_clients = config.train.clients_per_round, config.fleet.num_clients
    if clients_per_round is not None and clients_per_round > num_clients:
        raise InputError(
            f"train.clients_per_round is {clients_per_round} but there are {num_clients} clients; lower it, or leave it "
            "out for all"
        )


def _check_norm(config: RunConfig, model: SplitModel) -> None:
    """Refuse to estimate BatchNorm's statistics where the model has none, or where the framework cannot."""
    if config.train.norm_statistics == "averaged":
        return
    kind = find_framework(config.framework)
    why = kind.why_averaged(config) if hasattr(kind, "why_averaged") else FrameworkBase.why_averaged(config)
    if why is None and not NormLayers.of(model).num_layers:
        why = "no unit of the model has a layer of BatchNorm"
    if why is not None:
        raise InputError(f"train.norm_statistics is {config.train.norm_statistics!r} but {why}; set it to averaged")


def _norm_notes(config: RunConfig, model: SplitModel, indices: Holdings) -> list[str]:
    """Whether so few steps leave BatchNorm's running statistics near their first values, which spoils every test.

    A step leaves `1 - momentum` of them, and averaging over clients changes nothing in that; where clients take turns, all their
    steps count.
    """
    rates = model.norm_rates
    if not rates or config.train.norm_statistics == "estimated":
        return []
    train, row = config.train, method(config.framework)
    samples = indices.sizes.sum() if row.pools_data else float(np.median(indices.sizes))
    turns = {"alone": train.clients_per_round or len(indices), "clusters": config.options.cpsl.clusters}
    steps = int(steps_of_round(samples, train.batch_size, train.local_epochs)) * turns.get(row.timing.turns, 1)
    left = (1 - max(rates)) ** (steps * train.rounds)
    if left < MOST_LEFT:
        return []
    return [
        f"{count(steps, 'step')} a round for {count(train.rounds, 'round')} leave {left:.0%} of BatchNorm's first statistics in the model, "
        "which is then tested with them and looks worse than it learned; lower train.batch_size, make more rounds, or set "
        "model.norm=group"
    ]


def _pixel_notes(config: RunConfig, dataset: Dataset, world: World) -> list[str]:
    """Which classes no test pixel has, and how large the targets are beside the smashed data, since no link counts them."""
    notes, smashed_bits = [], world.cost.smashed_bits[1:-1]
    if absent := [row.name for row in class_counts_of(dataset) if not row.num_test]:
        notes.append(f"no test sample has {' or '.join(absent)}; mean IoU is the mean over the other classes")
    target_bytes, least_bytes = dataset.train_y[0].nbytes, smashed_bits.min(initial=np.inf) / 8
    if method(config.framework).timing.cut == "any" and target_bytes > MOST_UNCOUNTED * least_bytes:
        notes.append(
            f"targets of {size(target_bytes)} a sample go up with the smashed data, {size(least_bytes)} or more, and as all labels "
            "are neither counted nor timed"
        )
    return notes


def _receiver_notes(config: RunConfig) -> list[str]:
    """Whether a large fleet gets the model of every round, though few of its clients take part."""
    train, num_clients = config.train, config.fleet.num_clients
    few = (train.clients_per_round or num_clients) < num_clients
    if (
        num_clients <= MANY_CLIENTS
        or not few
        or train.receivers == "chosen"
        or not method(config.framework).copy_per_client
    ):
        return []
    return [
        f"all {num_clients:,} clients receive the model of every round, in which {train.clients_per_round:,} take part, and the "
        "clock charges it; set train.receivers=chosen to send it to those alone"
    ]


def _check_policy(config: RunConfig) -> None:
    """Refuse given cuts beside a policy that has a rule for cuts: the policy would not choose the given cuts."""
    if config.allocation.policy == "own" or not method(config.framework).own_cuts:
        return
    name, cuts = config.allocation.policy, config.fleet.cuts
    if policy_of(config).chooses_cuts and cuts not in ("auto", "planned"):
        raise InputError(
            f"allocation.policy={name} chooses cuts but fleet.cuts is {cuts!r}; set fleet.cuts=planned, or take a policy "
            "without a rule for cuts"
        )


def _check_smallest_batch(config: RunConfig, model: SplitModel, train: Images, indices: Holdings) -> None:
    """Refuse a model that cannot train on the smallest batch: BatchNorm fails where a batch of one small image leaves a
    single value in a channel of a deep model."""
    sizes = indices.sizes
    fewest = int(sizes.sum() if method(config.framework).pools_data else sizes.min())
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
