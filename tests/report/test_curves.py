import math

import numpy as np
import pytest

from hsfl.errors import InputError
from hsfl.report.curves import Curve, curve, estimate, mean_band, steps_of, t_quantile, time_to_target_s
from tests.naming import raises
from tests.report.fabricated import record, records


def test_a_curve_steps_at_the_end_of_each_evaluated_round():
    rounds = records([0.2, None, 0.4])  # rounds end at 10, 20 and 30 s
    over_time = curve(rounds)
    assert over_time.x.tolist() == [10, 30]
    np.testing.assert_array_equal(
        over_time.at([0, 9.9, 10, 20, 29.9, 30, 30.1]), [np.nan, np.nan, 0.2, 0.2, 0.2, 0.4, np.nan]
    )
    np.testing.assert_array_equal(curve(rounds, over="rounds").at([0, 1, 2, 3, 4]), [np.nan, 0.2, 0.2, 0.4, np.nan])


def test_a_value_holds_as_far_as_the_run_is_known_to_last():
    rounds = records([0.2, 0.4, None])
    assert curve(rounds).end == 30  # not evaluated at the end, yet the run went on
    assert curve(rounds, end=35.0).at([35])[0] == 0.4
    assert curve(rounds, end=5.0).end == 30  # never shorter than the run


def test_nothing_evaluated_is_unknown_everywhere():
    assert np.isnan(curve([]).at([0, 1])).all()
    assert np.isnan(curve(records([None])).at([0, 10])).all()
    assert steps_of([curve([]), curve(records([0.1]))]).size == 0


def test_losses_are_curves_too():
    assert curve([record(1, train_loss=None), record(2, train_loss=0.5)], "train_loss", "rounds").x.tolist() == [2]
    with raises(InputError, "quantity 'accuracy'"):
        curve([], "accuracy")
    with raises(InputError, "axis 'tim'", "did you mean time"):
        curve([], over="tim")


def test_the_interval_by_hand():
    """Values 1, 2, 3, 6: mean 3, squares of differences 4 + 1 + 0 + 9 = 14, s^2 = 14/3, s/sqrt(4) = 1.0801, and
    t(3) = 3.1824, so the half width is 3.4374."""
    result = estimate([1, 2, 3, 6])
    assert (result.mean, result.num) == (3.0, 4)
    assert result.high == pytest.approx(3 + 3.4374, abs=1e-4)
    assert result.low == pytest.approx(3 - 3.4374, abs=1e-4)


def test_a_mean_of_ratios_is_geometric():
    """2 and 8: mean of logs is log 4, s of logs is log(4)/sqrt(2), half width 12.7062 log(4)/2."""
    result = estimate([2, 8], ratio=True)
    assert result.mean == pytest.approx(4)
    assert result.high == pytest.approx(4 * math.exp(12.7062 * math.log(4) / 2))
    assert result.low * result.high == pytest.approx(16)


@pytest.mark.parametrize(
    ("values", "mean", "num"), [([], None, 0), ([None, None], None, 0), ([3.0], 3.0, 1), ([1.0, 2.0, None], 1.5, 2)]
)
def test_too_few_values_or_a_selection_of_them_have_no_interval(values, mean, num):
    result = estimate(values)
    assert (result.mean, result.low, result.high, result.num) == (mean, None, None, num)


def test_equal_values_have_an_interval_of_no_width():
    result = estimate([2, 2, 2])
    assert result.low == result.mean == result.high == 2


@pytest.mark.parametrize(("dof", "quantile"), [(1, 12.7062), (4, 2.7764), (30, 2.0423), (50, 2.0086), (1000, 1.9623)])
def test_quantiles_listed_and_between(dof, quantile):
    assert t_quantile(dof) == pytest.approx(quantile, abs=2e-4)


def test_quantiles_agree_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    for dof in range(1, 300):
        assert t_quantile(dof) == pytest.approx(stats.t.ppf(0.975, dof), abs=1e-4)


def test_no_degrees_of_freedom():
    with raises(InputError, "two values"):
        t_quantile(0)


def test_a_band_is_known_only_where_every_seed_is():
    """Two seeds: 0.2 from 10 s and 0.4 from 20 to 40 s; 0.4 from 15 s and 0.6 from 30 to 35 s."""
    curves = [
        Curve(np.array([10.0, 20]), np.array([0.2, 0.4]), 40),
        Curve(np.array([15.0, 30]), np.array([0.4, 0.6]), 35),
    ]
    grid = steps_of(curves)
    assert grid.tolist() == [15, 20, 30, 35]
    band = mean_band(curves, np.array([10, *grid, 36]))
    np.testing.assert_allclose(band.mean, [np.nan, 0.3, 0.4, 0.5, 0.5, np.nan])
    assert band.num_known.tolist() == [1, 2, 2, 2, 2, 1]
    half = 12.7062 * 0.1  # s = 0.2/sqrt(2), over sqrt(2)
    np.testing.assert_allclose(band.high - band.mean, [np.nan, half, 0, half, half, np.nan], atol=1e-12)
    np.testing.assert_allclose(band.mean - band.low, band.high - band.mean)


def test_one_seed_has_a_mean_and_no_interval():
    band = mean_band([curve(records([0.2, 0.4]))], np.array([10, 20]))
    assert band.mean.tolist() == [0.2, 0.4]
    assert np.isnan(band.low).all()
    assert np.isnan(band.high).all()
    with raises(InputError, "one curve"):
        mean_band([], np.array([1]))


def test_seeds_that_never_overlap_have_no_mean():
    curves = [Curve(np.array([1.0]), np.array([0.5]), 2), Curve(np.array([3.0]), np.array([0.5]), 4)]
    assert steps_of(curves).size == 0


def test_time_to_target():
    rounds = records([0.2, None, 0.5, 0.4, 0.6])
    assert time_to_target_s(rounds, 0.5) == 30  # reached is enough, and the first time counts
    assert time_to_target_s(rounds, 0.51) == 50
    assert time_to_target_s(rounds, 0.7) is None
    assert time_to_target_s([], 0.1) is None
