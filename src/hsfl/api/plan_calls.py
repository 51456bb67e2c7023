"""`hsfl.plan`: cuts and an allocation for a fleet, without training. With a cost table it needs no torch."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hsfl.allocation.cuts.search import OnProgress
from hsfl.api.arguments import CallArguments, Config, arguments_of_call
from hsfl.errors import InputError
from hsfl.models.cost_table import CostTable
from hsfl.planning.fleet_from_file import with_fleet_file
from hsfl.planning.fleet_plan import Plan, make_plan
from hsfl.planning.world import World, make_world, world_of
from hsfl.report.page.page_words import describe_plan
from hsfl.runs.client_data import expected_samples, expected_task


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
    """Which cut each client has, what it is allocated, and how long a round takes, for the fleet and the data of a run.

    config, settings, sections, data, model, plugins: as in `hsfl.run`. The shape of a sample, the number of classes and each client's
    samples are those of the data set; where `input_shape`, `num_classes` (or `cost`, a cost table) and `samples_per_client`
    say all of it, no data are read. progress: is called with what is searched, its step and the best round in seconds.
    """
    arguments = arguments_of_call(config, settings, data, model, plugins, sections)
    arguments.check(planning=True)
    if cost is not None and arguments.model is not None:
        raise InputError("a model and a cost table are given; leave one of them out")
    survey = expected_samples(
        arguments.config,
        arguments.data,
        shape=input_shape,
        num_classes=num_classes,
        samples_per_client=samples_per_client,
        cost=cost is not None,
    )
    if cost is not None:
        world = world_of(arguments.config, cost)
    else:
        world = _measured_world(arguments, survey.shape, survey.num_classes)
    answer = make_plan(arguments.config, world.named(survey.client_names), survey.num_samples, progress)
    assumed = describe_plan(with_fleet_file(arguments.config), survey.num_samples.tolist(), survey.data)
    return replace(answer, notes=[*survey.notes, *answer.notes], assumed=assumed)


def _measured_world(arguments: CallArguments, shape: tuple[int, ...], num_classes: int) -> World:
    if arguments.model is not None:
        from hsfl.models.model_checks import check_fits, example  # here, because they load torch

        targets = expected_task(arguments.config, arguments.data).targets
        check_fits(arguments.model, example(shape, arguments.model.input_dtype), num_classes, targets)
    return make_world(arguments.config, tuple(shape), num_classes, arguments.model)
