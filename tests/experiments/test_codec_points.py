"""The study of what codecs cost in accuracy: its settings, its paired points, and that the figure is that of the CSV."""

from pathlib import Path

import pytest

from hsfl.experiments import codec_points
from hsfl.experiments.codec_points import (
    CodecTest,
    accuracies,
    codec_config,
    points_against_none,
    read_codec_tests,
    shortest_run_s,
    within_aim,
)
from hsfl.experiments.codec_rounds import CODINGS
from hsfl.report.curves import Estimate
from tests.naming import names
from tests.small_runs import hsfl

LOSES = {"none": 0.0, "float16": 0.0, "int8": 0.002, "topk": 0.05, "mix": 0.03}


def invented() -> list[CodecTest]:
    """Seeds differ by points, codecs by tenths of them; with the codec half as much is lost."""
    return [
        CodecTest(
            "cifar10", coding, seed, number, number * (10.0 if coding == "none" else 5.0), accuracy, accuracy + lost / 2
        )
        for coding, lost in LOSES.items()
        for seed in (1, 2, 3)
        for number in range(1, 21)
        for accuracy in [0.5 + 0.02 * seed + 0.01 * number - lost + (seed - 2) * 1e-4 * (coding != "none")]
    ]


def test_points_are_paired_over_seeds_and_means_are_of_the_last_rounds(tmp_path: Path) -> None:
    outcome = codec_points._draw_codec_points(tmp_path, "quick", invented())
    (table,) = [path for path in outcome.files if path.suffix == ".csv"]
    tests = read_codec_tests(table)
    assert tests == invented()
    assert accuracies(tests, "cifar10", "none")[1] == pytest.approx(100 * (0.52 + 0.18))
    points = points_against_none(tests, "cifar10", "int8")
    assert (points.mean, points.num) == (pytest.approx(-0.2), 3)
    assert points.low is not None
    assert points.low > -0.3  # seeds differ by two points, pairs by a hundredth
    assert points_against_none(tests, "cifar10", "topk", "coded").mean == pytest.approx(-2.5)
    assert shortest_run_s(tests, "cifar10") == 100.0
    # at 100 s the uncoded training has made 10 rounds, the others 20
    assert points_against_none(tests, "cifar10", "int8", until_s=100.0).mean == pytest.approx(9.8)
    names(outcome.trends[0].ours, "-0.20", "n = 3: shown")
    assert (tmp_path / "codec-points.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("low", "high", "answer"), [(-0.29, 0.1, True), (-0.5, -0.1, None), (-0.9, -0.31, False), (None, None, None)]
)
def test_an_aim_is_shown_by_the_interval_alone(low: float | None, high: float | None, answer: bool | None) -> None:
    assert within_aim(Estimate(0.0, low, high, 3)) is answer


def test_trainings_differ_by_their_codecs_alone() -> None:
    configs = {coding: codec_config("cifar10", "quick", coding, 2) for coding in CODINGS}
    assert (configs["none"].data.limit, configs["none"].train.rounds, configs["none"].fleet_seed) == (10000, 20, 1)
    for coding, config in configs.items():
        assert ",".join(config.link.allowed) == CODINGS[coding]
        assert config.model_copy(update={"link": configs["none"].link}) == configs["none"]


@pytest.mark.slow
def test_the_whole_study_at_smoke_scale_goes_on_where_it_was(tmp_path: Path) -> None:
    words = (
        "reproduce",
        "codec-points",
        "--scale",
        "smoke",
        "--datasets",
        "digits",
        "--seeds",
        "1",
        "--out",
        tmp_path / "out",
        "--quiet",
    )
    assert hsfl(*words).code == 0
    runs = sorted((tmp_path / "out" / "codec-points" / "runs").iterdir())
    assert len(runs) == len(CODINGS)
    times = [path.stat().st_mtime_ns for run in runs for path in run.glob("rounds.jsonl")]
    assert hsfl(*words).code == 0
    assert times == [path.stat().st_mtime_ns for run in runs for path in run.glob("rounds.jsonl")]
    assert "| mix |" in (tmp_path / "out" / "codec-points" / "codec-points.md").read_text()
