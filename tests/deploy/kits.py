"""A small kit that several tests build on."""

from functools import cache

from hsfl.config import parse_config
from hsfl.deploy.model_kit import ModelKit, make_kit
from tests.deploy.fleet import RUN


@cache
def small_kit() -> ModelKit:
    kit = make_kit(parse_config(RUN), (1, 8, 8), 10)
    assert kit.initial.stop == kit.num_units == 5
    return kit
