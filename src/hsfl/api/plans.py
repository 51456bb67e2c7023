"""`hsfl.plan`. With a cost table it needs no torch."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.allocation.cut_methods import OnProgress
from hsfl.api.chosen import Chosen, Config, choose
from hsfl.errors import InputError
from hsfl.models.cost import CostTable
from hsfl.planning.plan import Plan, make_plan
from hsfl.planning.world import World, make_world, world_of
from hsfl.runs.data import survey


def plan(
    config: Config = None,
    settings: Iterable[str] = (),
    *,
    data: Any = None,
    model: Any = None,
    cost: CostTable | None = None,
    input_shape: tuple[int, ...] | None = None,
    num_classes: int | None = None,
    samples_per_client: int | None = None,
    progress: OnProgress | None = None,
    plugins: Iterable[str | Path] = (),
    **sections: Any,
) -> Plan:
    """Which cut for which client, what each client gets, and what a round takes, for the fleet and the data of a run.

    config, settings, sections, data, model: as in `hsfl.run`. The shape of a sample, the number of classes and each client's
    samples are those of the data set; where `input_shape`, `num_classes` (or `cost`, a cost table) and `samples_per_client`
    say all of it, no data are read. progress: is called with what is searched, its step and the best round in seconds.
    """
    chosen = choose(config, settings, data, model, plugins, sections)
    if cost is not None and chosen.model is not None:
        raise InputError("a model and a cost table are given; leave one of them out")
    shape, classes, counts = input_shape, num_classes, samples_per_client
    num_samples, notes = np.full(chosen.config.fleet.num_clients, float(counts or 0)), []
    if counts is None or (cost is None and (shape is None or classes is None)):
        seen = survey(chosen.config, chosen.data)
        shape, classes = shape or seen.shape, classes or seen.num_classes
        num_samples, notes = seen.num_samples if counts is None else num_samples, seen.notes
    world = world_of(chosen.config, cost) if cost is not None else _world(chosen, shape, classes)
    answer = make_plan(chosen.config, world, num_samples, progress)
    return replace(answer, notes=[*notes, *answer.notes])


def _world(chosen: Chosen, shape: tuple[int, ...] | None, num_classes: int | None) -> World:
    assert shape is not None, "given or seen"
    assert num_classes is not None, "given or seen"
    if chosen.model is not None:
        from hsfl.models.fit import check_fits, example  # here, because they load torch

        check_fits(chosen.model, example(shape), num_classes)
    return make_world(chosen.config, tuple(shape), num_classes, chosen.model)
