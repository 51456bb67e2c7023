"""Intervals over fleets and seeds by hand, their coverage, and Holm's correction."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsfl.experiments.statistics import (
    LEVEL,
    NO,
    UNDECIDED,
    YES,
    holm,
    mean_squares,
    over_fleets_and_seeds,
    p_value,
    two_way_half_width,
    verdicts,
)

T1, T2 = 12.7062, 4.3027  # 97.5 % quantiles of Student's t with 1 and 2 degrees of freedom
SMALL = np.array([[1.0, 2.0, 6.0], [3.0, 8.0, 10.0]])  # 2 fleets, 3 seeds


def test_mean_squares_by_hand() -> None:
    """Mean 5. Fleets 3 and 7: 3 (4 + 4) / 1. Seeds 2, 5, 8: 2 (9 + 0 + 9) / 2. Rest: 1-3-2+5 = 1, 2-3-5+5 = -1, 6-3-8+5 = 0, and for
    the other fleet their negatives: 4 / 2."""
    assert mean_squares(SMALL) == pytest.approx((24.0, 18.0, 2.0))


def test_the_interval_by_hand() -> None:
    """t(1) for fleets, t(2) for seeds, and t(1 x 2) for the rest, in squares over F S = 6."""
    squared = (24 * T1**2 + 18 * T2**2 - 2 * T2**2) / 6
    assert two_way_half_width(SMALL) == pytest.approx(math.sqrt(squared), rel=1e-4)
    found = over_fleets_and_seeds(SMALL)
    assert (found.mean, found.num) == (5.0, 3)
    assert found.low == pytest.approx(5 - math.sqrt(squared), rel=1e-4)


def test_the_interval_is_never_narrower_than_that_of_fleets_or_seeds_alone() -> None:
    """Where seeds agree better than the rest lets expect, the sum of squares would fall below the part of the fleets alone."""
    rng = np.random.default_rng(1)
    for num_fleets, num_seeds, _ in product((2, 5, 30), (2, 3, 5), range(20)):
        values = rng.normal(size=(num_fleets, num_seeds))
        half = two_way_half_width(values)
        for means in (values.mean(axis=0), values.mean(axis=1)):
            assert half >= two_way_half_width(means[None]) * (1 - 1e-12)
    values = np.array([[0.0, 1.0, -1.0], [1.0, 0.0, 2.0], [2.0, 2.0, 2.0]])  # seeds have one mean, 1
    assert two_way_half_width(values) == pytest.approx(two_way_half_width(values.mean(axis=1)[:, None]))


def test_one_seed_or_one_fleet_is_students_t() -> None:
    values = np.array([1.0, 2.0, 6.0])
    by_hand = T2 * math.sqrt(7.0) / math.sqrt(3)  # variance (4 + 1 + 9) / 2
    assert two_way_half_width(values[None]) == pytest.approx(by_hand, rel=1e-4)
    assert two_way_half_width(values[:, None]) == pytest.approx(by_hand, rel=1e-4)
    assert np.isnan(two_way_half_width(np.ones((1, 1))))
    assert over_fleets_and_seeds(np.ones((1, 1))).low is None


def test_several_places_at_once() -> None:
    """A band of a figure is the interval of each of its places."""
    values = np.random.default_rng(2).normal(size=(4, 3, 5))
    assert two_way_half_width(values) == pytest.approx(
        [float(two_way_half_width(values[:, :, place])) for place in range(5)]
    )


def test_a_selection_has_no_interval() -> None:
    found = over_fleets_and_seeds(np.array([[1.0, 3.0], [np.nan, 5.0]]))
    assert (found.mean, found.low, found.high) == (3.0, None, None)
    assert over_fleets_and_seeds(np.full((2, 2), np.nan)).mean is None


@pytest.mark.parametrize("shift", [0.05, 0.3, 1.0, 3.0])
def test_p_values_and_intervals_say_the_same(shift: float) -> None:
    values = np.random.default_rng(3).normal(size=(30, 3)) + shift
    p = p_value(values)
    assert two_way_half_width(values, p) == pytest.approx(abs(values.mean()), rel=1e-3)
    found = over_fleets_and_seeds(values)
    assert found.low is not None
    assert (p < LEVEL) == (found.low > 0)


def test_p_value_of_one_fleet_is_that_of_the_t_test() -> None:
    from scipy.stats import ttest_1samp

    values = np.array([0.9, 1.1, 1.6, 0.2])
    assert p_value(values[None]) == pytest.approx(ttest_1samp(values, 0.0).pvalue, rel=1e-4)


def test_p_values_where_nothing_varies() -> None:
    assert p_value(np.zeros((3, 3))) == 1.0
    assert p_value(np.ones((3, 3))) < 1e-50


def coverage(fleet: float, seed: float, rest: float, level: float = LEVEL, trials: int = 4000) -> float:
    """How often the interval holds the true mean, at 30 fleets and 3 seeds with these standard deviations."""
    rng = np.random.default_rng(7)
    values = (
        fleet * rng.normal(size=(30, 1, trials))
        + seed * rng.normal(size=(1, 3, trials))
        + rest * rng.normal(size=(30, 3, trials))
    )
    return float(np.mean(np.abs(values.mean(axis=(0, 1))) <= two_way_half_width(values, level)))


@pytest.mark.parametrize(
    ("fleet", "seed", "rest"), [(1, 0, 0.3), (1, 0.2, 0.3), (1, 0.5, 0.3), (1, 1, 0.3), (0.1, 1, 0.3), (0.2, 0.1, 1)]
)
def test_the_interval_covers_at_three_seeds_and_thirty_fleets(fleet: float, seed: float, rest: float) -> None:
    """At least 95 % (less three standard errors of 4,000 trials), and not above 99 %; also at the first level of Holm over 15 verdicts."""
    assert 0.94 <= coverage(fleet, seed, rest) <= 0.99
    assert coverage(fleet, seed, rest, 0.05 / 15) >= 1 - 0.05 / 15 - 0.003


def test_seeds_alone_would_not_cover_fleets() -> None:
    """What the interval replaces: Student's t over three seeds of fleet-averaged values, where fleets differ most."""
    rng = np.random.default_rng(7)
    values = rng.normal(size=(30, 1, 2000)) + 0.1 * rng.normal(size=(1, 3, 2000)) + 0.3 * rng.normal(size=(30, 3, 2000))
    means = values.mean(axis=0)  # [S, trials]
    inside = np.abs(means.mean(axis=0)) <= two_way_half_width(means[None])
    assert inside.mean() < 0.8


# ---- Holm


def test_holm_by_hand() -> None:
    """4 x 0.005, 3 x 0.01, then 2 x 0.03 = 0.06, which the last one, 0.04, cannot fall below."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_no_correction_and_bonferroni(p_values: list[float]) -> None:
    corrected = holm(p_values)
    for p, new in zip(p_values, corrected):
        assert p <= new <= min(1.0, len(p_values) * p)
    assert [corrected[i] for i in np.argsort(p_values, kind="stable")] == sorted(corrected)  # the order stays
    assert min(corrected) == min(1.0, len(p_values) * min(p_values))  # the smallest pays Bonferroni's price


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_as_the_step_down_rule_does(p_values: list[float]) -> None:
    """The textbook: from the smallest on, reject while p_(i) < level / (m - i + 1); the first that is not ends it."""
    rejected, left = set(), len(p_values)
    for index in np.argsort(p_values, kind="stable"):
        if not p_values[index] * left < LEVEL:
            break
        rejected.add(int(index))
        left -= 1
    assert {index for index, p in enumerate(holm(p_values)) if p < LEVEL} == rejected


def test_verdicts_are_corrected_together() -> None:
    """A difference that is decided alone may be undecided beside others."""
    one = np.array([[0.9, 1.0, 1.3]])  # t = 1.0667 / (0.2082 / 1.732) = 8.87, p = 0.0125
    (alone,) = verdicts([one])
    assert alone.answer == YES
    assert alone.corrected_p == pytest.approx(0.0125, rel=0.01)
    assert verdicts([-one])[0].answer == NO
    assert [found.answer for found in verdicts([one] * 5)] == [UNDECIDED] * 5
    surely = np.full((1, 3), -1.0)
    assert [found.answer for found in verdicts([one, surely])] == [YES, NO]


def test_a_single_seed_is_not_tested_and_costs_the_others_nothing() -> None:
    one, of_one_seed = np.array([[0.9, 1.0, 1.3]]), np.full((5, 1), 1.0)
    tested, untested = verdicts([one, of_one_seed])
    assert untested.corrected_p is None
    assert untested.answer == UNDECIDED
    assert tested.corrected_p == verdicts([one])[0].corrected_p
