"""The whole model that a framework's state gives: how good it is, and the one that is written down."""

from collections.abc import Sequence
from dataclasses import dataclass

from hsfl.engines.engine import Engine
from hsfl.frameworks.framework import Framework, State, whole_models
from hsfl.models.state import UnitState
from hsfl.training.aggregate import PartialSum
from hsfl.training.evaluation import Quality, mean_quality
from hsfl.training.link import LinkBytes
from hsfl.training.norm_statistics import NormShard


@dataclass(frozen=True)
class Estimated:
    """The joined model with BatchNorm's statistics estimated again, how good the model is with them and with the averaged ones, and what
    travelled for the estimation."""

    whole: UnitState
    quality: Quality
    averaged: Quality
    bytes: LinkBytes


def assess_estimated(
    engine: Engine, framework: Framework, state: State, kept: Sequence[int], round_index: int
) -> Estimated:
    """As `assess`, after the clients that the round kept have estimated BatchNorm's statistics again."""
    (averaged,) = whole_models(framework, state)
    shard = engine.norm_moments(averaged, kept, round_index)
    whole, num_bytes = _pooled(framework, averaged, shard)
    return Estimated(whole, engine.evaluate(whole), engine.evaluate(averaged), num_bytes)


def estimated(framework: Framework, state: State, kept: Sequence[int], round_index: int) -> UnitState:
    """The joined model with BatchNorm's statistics estimated again, in this process, for a file alone."""
    (averaged,) = whole_models(framework, state)
    return _pooled(framework, averaged, framework.norm_moments(averaged, kept, round_index))[0]


def _pooled(framework: Framework, averaged: UnitState, shard: NormShard) -> tuple[UnitState, LinkBytes]:
    shard.bytes.merge(framework.norm_swapped())
    return shard.moments.pooled(averaged), shard.bytes


def assess(engine: Engine, framework: Framework, state: State) -> Quality:
    """How good the joined model is on the test samples; the mean over the clients where each client has a model of its own."""
    return mean_quality([engine.evaluate(whole) for whole in whole_models(framework, state)])


def exported(framework: Framework, state: State) -> UnitState:
    """The one model that a run gives: the joined model, or the mean of the joined models where clients keep heads of their own."""
    models = list(whole_models(framework, state))
    if len(models) == 1:
        return models[0]
    total = PartialSum.zero(models[0], len(models))
    for whole in models:
        total.add(whole, 1.0)
    return total.mean(models[0])
