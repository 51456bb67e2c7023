"""Table 1's arithmetic by hand: a trace under a fleet's clock, ratios over fleets, verdicts."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsfl.data.registry import FACTS
from hsfl.errors import InputError
from hsfl.experiments.statistics import ratio_over_fleets
from hsfl.experiments.table1.columns import COLUMNS, SEVEN, base_config, trace_config
from hsfl.experiments.table1.fleets import Answer
from hsfl.experiments.table1.table1_report import difference, table1_markdown, table1_tables, table1_trends
from hsfl.experiments.table1.table1_study import Study, column_timings, table_cells
from hsfl.experiments.table1.tau_row import TauRow
from hsfl.experiments.table1.traces import Trace, TraceRound, at_budget, budget_s, largest_difference, time_to_s
from hsfl.report.tables import csv_cells
from tests.naming import raises


def make_trace(accuracies: Sequence[float], name: str = "twins", seed: int = 1, data: str = "mnist") -> Trace:
    rounds = tuple(TraceRound(i + 1, 2.0 - a, 1.0, a, a / 2, (a,)) for i, a in enumerate(accuracies))
    return Trace(data, name, seed, base_config(data, "smoke", seed), (10,) * 10, rounds, {})


def make_answer(fleet: int, seconds: dict[str, float], seed: int = 1, data: str = "mnist") -> Answer:
    """Rounds of constant length."""
    round_s = {name: [value] * 4 for name, value in seconds.items()}
    return Answer(data, seed, fleet, "drawn", 0.01, {}, round_s, [1e9], [3], [10.0], 0.0, "")


@pytest.mark.parametrize(
    ("budget", "rounds", "short", "value"),
    [(9.9, 0, False, None), (10.0, 1, False, 0.1), (29.9, 2, False, 0.2), (39.0, 3, False, 0.3), (40.0, 3, True, 0.3)],
)
def test_the_last_round_within_the_budget_counts(budget: float, rounds: int, short: bool, value: float | None) -> None:
    reached = at_budget(make_trace([0.1, 0.2, 0.3]), [10.0] * 4, budget)
    assert (reached.rounds, reached.short, reached.value) == (rounds, short, value)


def test_seconds_to_a_target() -> None:
    trace = make_trace([0.1, 0.5, 0.4, 0.6])
    assert time_to_s(trace, [1.0, 2.0, 4.0, 8.0], 0.5) == 3.0
    assert time_to_s(trace, [1.0, 2.0, 4.0, 8.0], 0.55) == 15.0
    assert time_to_s(trace, [1.0, 2.0, 4.0, 8.0], 0.7) is None
    assert budget_s([1.0, 2.0, 4.0, 8.0], 3) == 7.0


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=30))
def test_a_ratio_over_fleets_is_a_geometric_mean_inside_its_interval_and_range(ratios: list[float]) -> None:
    found = ratio_over_fleets(ratios)
    assert found.mean == pytest.approx(math.prod(ratios) ** (1 / len(ratios)), rel=1e-9)
    assert found.smallest * (1 - 1e-9) <= found.low <= found.mean * (1 + 1e-9)
    assert found.mean * (1 - 1e-9) <= found.high <= found.largest * (1 + 1e-9)
    assert found.below_one_per_cent == sum(r < 1.01 for r in ratios) / len(ratios)
    assert str(ratio_over_fleets(ratios)) == str(found)  # the resamples are always the same


def test_the_bootstrap_covers_about_as_it_says() -> None:
    """Of 400 samples of 30 fleets, some 95 % have the true mean in their interval (binomial: 0.92 to 0.97, less a small-sample bias)."""
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(400):
        found = ratio_over_fleets(np.exp(rng.normal(0.3, 0.2, 30)))
        inside += found.low <= math.exp(0.3) <= found.high
    assert 0.90 <= inside / 400 <= 0.98


def make_study(num_seeds: int = 2) -> Study:
    """Two fleets; HSFL's rounds take half and a third of V1's. The second seed is a point better everywhere."""
    traces, answers = {}, []
    for seed in range(1, num_seeds + 1):
        better = 0.01 * (seed - 1)
        traces["mnist", "twins", seed] = make_trace([a + better for a in (0.1, 0.2, 0.3, 0.4)], "twins", seed)
        for name in ("sl", "cl"):
            traces["mnist", name, seed] = make_trace([0.15 + better, 0.9 + better], name, seed)
        for fleet, own in ((1, 5.0), (2, 10.0 / 3)):
            seconds = dict.fromkeys(SEVEN, 10.0) | {"hsfl": own, "hsfl_even": 6.0, "sl": 25.0, "cl": 1.0}
            answers.append(make_answer(fleet, seconds, seed))
    return Study(SEVEN, traces, answers)


def test_cells_are_what_each_column_has_when_the_budget_is_spent() -> None:
    study = make_study()
    assert study.budget_rounds("mnist") == 2  # 20 s
    found = {(c.column, c.seed, c.fleet, c.fraction): c for c in table_cells(study)}
    assert found["hsfl", 1, 1, 1.0].accuracy == 0.4  # four rounds of 5 s
    assert not found["hsfl", 1, 1, 1.0].short
    assert found["hsfl", 1, 2, 1.0].short  # six rounds would fit, four were trained
    assert found["splitfed_v1", 2, 1, 1.0].accuracy == pytest.approx(0.21)
    assert found["hsfl", 1, 1, 0.5].accuracy == 0.2
    assert found["hsfl", 1, 1, 0.25].rounds == 1
    assert found["sl", 1, 1, 1.0].accuracy is None
    assert found["cl", 1, 1, 0.25].balanced_accuracy == 0.45


def test_differences_are_paired_on_every_fleet_and_seed() -> None:
    found = list(table_cells(make_study()))
    values = difference(found, "mnist", "hsfl", "splitfed_v1")
    assert values is not None
    assert values == pytest.approx(np.full((2, 2), 0.2))  # [fleets, seeds]
    assert difference(found, "mnist", "hsfl", "sl") is None
    claims = {trend.paper: trend for trend in table1_trends(found)}
    above = claims["MNIST: HSFL, proposed is more accurate than SplitFed V1, as published (0.10 points)"]
    assert above.holds is True
    assert "+20.00 points [+20.00, +20.00], p < 0.001, yes" in above.ours
    assert claims["MNIST: HSFL, proposed is more accurate than CL (0.12 points)"].holds is False
    assert claims["MNIST: HSFL, proposed is more accurate than SL (0.30 points)"].holds is None  # SL has no round
    assert claims["(not in the paper) MNIST: HSFL, proposed is more accurate than V1, best single cut, proposed"].holds


def test_one_seed_decides_nothing_and_says_so() -> None:
    study = make_study(1)
    found = list(table_cells(study))
    (alone, *_) = trends = table1_trends(found)
    assert alone.holds is None
    assert "+20.00 points [+20.00, +20.00] over fleets alone (n = 1 seed, which decides nothing)" in alone.ours
    tables = table1_tables(study, found, list(column_timings(study)), [])
    text = table1_markdown(study, found, tables, trends, "smoke")
    assert "Intervals are over 2 fleets alone, for this one training (n = 1 seed)" in text
    assert "Holm" not in text


def test_the_tables_say_it() -> None:
    study = make_study()
    found, times = list(table_cells(study)), list(column_timings(study))
    rows = [
        TauRow("ham10000", 1, "fl", 9.0, 20.0, 3, 2, 1, False, 0.7, 0.3),
        TauRow("ham10000", 2, "fl", 9.0, 20.0, 4, 0, None, True, 0.8, 0.4),
    ]
    tables = table1_tables(study, found, times, rows)
    text = table1_markdown(study, found, tables, table1_trends(found), "smoke")
    assert "n = 2 fleets x 2 training seeds" in text
    assert "with fleets and training seeds both random (n = 2 x 2)" in text
    assert "Holm's correction over all 4 of them" in text  # five claims, but SL has made no round
    assert f"| SplitFed V1, as published | {math.sqrt(6):.3f} [2.000, 3.000] (2.00 to 3.00) |" in text
    assert "| MNIST | 40.5 ± 6.4 [4] †50 |" in text  # seeds 0.40 and 0.41: 12.7062 x 0.7071 / 1.4142 = 6.4 points
    assert "| MNIST, the paper | 99.05 | - | 98.95 | - | 98.27 | 98.75 | 98.93 |" in text
    assert "| no round |" in text
    assert "| CL | HSFL never | never | never |" in text  # CL alone reaches 90 %, nobody 95
    assert "| FL | 75.0 ± 63.5 | 35.0 ± 63.5 | 3 / 4 † | 2 / 0 | 1 / - |" in text
    assert len({table.name for table in tables}) == len(tables) == 6
    assert all("n = 2" in table.note for table in tables)
    (accuracy,) = (table for table in tables if table.name == "table1-accuracy-100")
    header, lines = csv_cells(accuracy)
    (mnist, *_) = (dict(zip(header, line)) for line in lines)
    assert mnist["HSFL, proposed"] == pytest.approx(40.5)
    assert mnist["HSFL, proposed high"] == pytest.approx(40.5 + 12.7062 * 0.5, rel=1e-4)


def test_traces_of_one_algorithm_lose_the_same() -> None:
    left, right = make_trace([0.1, 0.2, 0.3]), make_trace([0.1, 0.2001])
    assert largest_difference(left, left) == 0
    assert largest_difference(left, right) == pytest.approx(0.0001 / 1.8)


def test_columns_and_their_trainings() -> None:
    assert {name for name in SEVEN if COLUMNS[name].trace == "twins"} == set(SEVEN) - {"sl", "cl"}
    twins, central = trace_config("cifar10", "quick", 3, "twins"), trace_config("cifar10", "quick", 3, "cl")
    assert (twins.framework, central.framework) == ("hsfl", "cl")
    assert central.train.rounds == twins.train.rounds // 2
    assert twins.train.tau_s is None
    assert twins.train.budget_s is None
    assert twins.train.schedule == "constant"  # else a shorter budget would not be the beginning of a longer one
    assert twins.data == central.data


@pytest.mark.parametrize("data", ["ham10000", "cifar10", "mnist", "digits"])
def test_the_whole_sets_are_as_large_as_the_table_says(data: str, request: pytest.FixtureRequest) -> None:
    from hsfl.data.registry import load_dataset

    folder = None if data == "digits" else str(request.getfixturevalue("data_dir"))
    found = load_dataset(data, folder)
    assert (len(found.train_y), found.train_x.shape[1:], len(found.classes)) == FACTS[data]
    config = base_config(data, "quick", 1)
    assert config.network.sample_scale * (config.data.limit or len(found.train_y)) == pytest.approx(len(found.train_y))


def test_an_unknown_column_is_named() -> None:
    from hsfl.experiments.table1.columns import columns_named

    assert columns_named("fl,hsfl") == ("fl", "hsfl", "splitfed_v1")  # whose rounds are the budget
    with pytest.raises(InputError, match="column"):
        columns_named("hsfl,hfsl")


def test_a_damaged_trace_is_one_line(tmp_path: Path) -> None:
    from hsfl.experiments.table1.traces import read_trace

    for text in ("", "# {}\nround\n", "# []\n", '# {"config": {}}\nround,train_loss\n1,x\n'):
        (tmp_path / "x.csv").write_text(text)
        with raises(InputError, "x.csv", "trace"):
            read_trace(tmp_path / "x.csv")
