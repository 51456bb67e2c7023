"""How long the rounds of a column take on a fleet, as a run would take them, without data and without training.

Legend: K clients.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hsfl.config import ModelConfig, RunConfig, with_changes
from hsfl.data.registry import FACTS
from hsfl.experiments.table1.columns import Column
from hsfl.framework_table import method
from hsfl.planning.rounds.round_clock import RoundClock, is_tested
from hsfl.planning.world import PluginOptions, World

if TYPE_CHECKING:
    from hsfl.models.state import Layout, UnitState
    from hsfl.models.units import SplitModel

Array = np.ndarray


def rounds_s(column: Column, base: RunConfig, world: World, cuts: Sequence[int], num_samples: Array) -> list[float]:
    """The seconds of every round, as a run of this column would take them: everyone takes part, nobody is dropped."""
    config = with_changes(column.config(base), [f"train.rounds={base.train.rounds}"])
    clock = column_clock(config, world, cuts, num_samples)
    everyone = tuple(range(len(num_samples)))
    tests_s = [
        clock.estimation_s(r, everyone) if is_tested(config.train, r) else 0.0 for r in range(config.train.rounds)
    ]
    return [clock.round(r, everyone)[0].round_s + test_s for r, test_s in enumerate(tests_s)]


def column_clock(config: RunConfig, world: World, cuts: Sequence[int], num_samples: Array) -> RoundClock:
    """The clock of the config's framework. cuts: [K], as chosen for the column. num_samples: [K], as the clock charges them.

    Only the framework's class knows how it uses the cuts, and what else the clock must know. So an object of the class is made,
    with blank data.
    """
    import torch  # here, because it takes seconds to load

    from hsfl.frameworks import find_framework
    from hsfl.frameworks.framework import Task
    from hsfl.training.batches import Feed, Images
    from hsfl.training.norm_statistics import NormLayers

    _, shape, num_classes = FACTS[config.data.name]
    shape, options = config.model.input or shape, config.options.of(config.model.name)
    device = (
        "meta" if method(config.framework).built_in else "cpu"
    )  # without weights, unless someone's own class looks at them
    model, layout, initial = _model(config.model, shape, num_classes, PluginOptions(options), device)
    blank = Images(torch.zeros(1, *shape, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), (), ())
    counts = np.rint(num_samples / config.network.sample_scale).astype(int)
    feed = Feed(blank, [np.zeros(count, int) for count in counts], config.seed)
    kind = find_framework(config.framework)
    arranged = kind.arrange(config, world, min(cuts), num_samples)
    made = kind(Task(config, model, layout, initial, feed, tuple(cuts), arranged))
    extras = replace(made.extras(), moment_bits=NormLayers.of(model).moment_bits)
    return RoundClock(config, world, made.cuts, num_samples, extras)


@lru_cache(maxsize=2)
def _model(
    settings: ModelConfig, shape: tuple[int, ...], num_classes: int, given_options: PluginOptions, device: str
) -> "tuple[SplitModel, Layout, UnitState]":
    """The model on a device, kept for the other columns and fleets; on "meta" it has shapes and no weights, which take time."""
    from hsfl.models.state import Layout, read_state  # here, because they load torch
    from hsfl.models.zoo import build

    model = build(settings.name, shape, num_classes, settings.norm, settings.stem, options=given_options.options).to(
        device
    )
    return model, Layout.of(model), read_state(model)
