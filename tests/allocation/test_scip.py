"""Differential tests against SCIP, whose allocation is re-evaluated by our equations."""

import numpy as np
import pytest

from hsfl.allocation.answer import violation
from hsfl.allocation.cuts.search import rcls
from hsfl.allocation.exact import exact
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.solvers import allocate

pytest.importorskip("pyscipopt")


def agree(clients, subchannels, seed, time_limit_s, gap=1e-3):
    """Both intervals [bound, value] must meet: each value is above the other's bound."""
    rng = np.random.default_rng(seed)
    scenario = random_scenario(rng, clients, subchannels)
    cuts = rcls(scenario.rows, rng)
    ours = exact(scenario, cuts, gap=gap)
    theirs = allocate(scenario, cuts, "scip", time_limit_s=time_limit_s, gap=gap)
    assert violation(scenario, theirs) <= 1e-9
    assert ours.lower_bound_s <= theirs.round_s * (1 + 1e-9)
    assert theirs.lower_bound_s <= ours.round_s * (1 + 1e-9)
    if theirs.gap <= gap:
        assert abs(ours.round_s / theirs.round_s - 1) <= 2 * gap


@pytest.mark.parametrize("seed", range(3))
def test_tiny_rounds_agree(seed):
    agree(2, 3, seed, time_limit_s=20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_rounds_agree(seed):
    clients, subchannels = [(2, 5), (3, 5), (4, 6), (3, 8)][seed % 4]
    agree(clients, subchannels, 100 + seed, time_limit_s=60)
