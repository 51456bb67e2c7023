"""The whole model that a framework's state gives: how good it is, and the one that is written down."""

from hsfl.engines.base import Engine
from hsfl.frameworks.base import Framework, State, whole_models
from hsfl.models.state import UnitState
from hsfl.training.aggregate import PartialSum
from hsfl.training.evaluate import Quality, mean_quality


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
