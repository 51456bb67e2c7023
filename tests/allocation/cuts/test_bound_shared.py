"""The bound over cuts where bands are shared: no share pays less, no cuts are faster, and it is worth having."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.allocation.cuts.bound import bound_over_cuts, options, priced_cuts
from hsfl.allocation.cuts.bound_shared import buy_band
from hsfl.allocation.cuts.search import rcls
from hsfl.allocation.exact import exact
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.stage.client_prices import alone_each_s, price
from hsfl.allocation.stage.shared_bands import bound_over_options
from hsfl.allocation.stage.stage import needs_subchannel
from hsfl.allocation.stage.stage_answer import TimeLimit
from hsfl.allocation.stage.water_filling import CURVE_ROWS
from tests.allocation.allocation_instances import all_cuts, scenarios


@settings(max_examples=40, deadline=None)
@given(scenarios(max_clients=2, max_subchannels=4, sharing="bandwidth"), st.sampled_from([0.01, 0.3, 2.0]), st.data())
def test_no_shares_pay_less_than_the_bound(scenario, level, data):
    """Against a thousand random shares of each row, at prices and deadlines that leave it much or little time."""
    stage, _ = options(scenario)
    subs = scenario.num_subchannels
    rng = np.random.default_rng(0)
    pi, lam = level * rng.uniform(0.5, 1.5, subs), data.draw(st.sampled_from([0.1, 0.5, 0.9]))
    rho = stage.hz / stage.power_w * lam / (1 - lam)
    work, rent, spent = np.empty((2, CURVE_ROWS, subs)), np.empty(subs), np.empty(2)
    some = np.exp(rng.uniform(-8, 0, (1000, 1))) * rng.random((1000, subs)) ** rng.choice([0.1, 1, 8], (1000, 1))
    for row, alone_s in enumerate(alone_each_s(stage)):
        if not needs_subchannel(stage, row):
            continue
        T = alone_s * data.draw(st.sampled_from([1.01, 1.5, 10.0])) + 1e-9
        share = np.full(subs, 1.0 / len(stage.cycles))
        bound = buy_band(stage, row, pi, T, rho, lam, np.inf, share, work[0], work[1], rent, spent)
        assert ((share > 0) & (share <= 1)).all()
        pays = [price(stage, row, s, work[0], work[1], T, rho, lam) + pi @ s for s in (*some, share)]
        assert bound <= min(pays) * (1 + 1e-9) + 1e-12


@settings(max_examples=15, deadline=None)
@given(scenarios(max_clients=2, max_subchannels=2, sharing="bandwidth"))
def test_no_cuts_are_faster_than_the_bound(scenario):
    """Every cut vector, solved; ties, zeros and clients without a server among them."""
    rounds = [(exact(scenario, cuts, gap=1e-2, time_limit_s=0.2).round_s, cuts) for cuts in all_cuts(scenario)]
    best_s = min(round_s for round_s, _ in rounds)
    for _, cuts in rounds[:: max(1, len(rounds) // 3)]:  # wherever the search begins
        assert bound_over_cuts([scenario], cuts, TimeLimit(1.0)) <= best_s * (1 + 1e-9) + 1e-12


def test_the_bound_at_the_paper_s_sizes():
    rng = np.random.default_rng(1)
    scenario = random_scenario(rng, 3, 2, sharing="bandwidth")
    few_cuts = replace(scenario, max_cut=np.full(3, 4))
    best = min((exact(few_cuts, cuts, gap=5e-3) for cuts in all_cuts(few_cuts)), key=lambda answer: answer.round_s)
    bound_s = bound_over_cuts([few_cuts], best.cuts, TimeLimit(5.0))
    assert 0.75 * best.round_s <= bound_s <= best.round_s


def test_prices_prove_far_more_than_each_alone_and_find_better_cuts():
    rng = np.random.default_rng(0)
    scenario = random_scenario(rng, 20, 8, sharing="bandwidth")
    first = best = exact(scenario, rcls(scenario.rows, rng), gap=1e-2)
    for _ in range(2):
        answers = [exact(scenario, cuts, gap=1e-2) for cuts in priced_cuts([scenario], best.cuts, TimeLimit(10.0))]
        best = min(answers, key=lambda answer: answer.round_s)
    assert best.round_s < 0.5 * first.round_s
    bound_s = bound_over_cuts([scenario], best.cuts, TimeLimit(10.0))
    assert bound_s <= best.round_s
    assert bound_s > 2 * bound_over_options(*options(scenario), first.round_s)
    assert bound_s == pytest.approx(best.round_s, rel=0.3)
