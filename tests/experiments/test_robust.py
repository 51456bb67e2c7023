"""The study of attackers trains what its settings say, and draws what its CSV holds."""

import csv
from pathlib import Path

import pytest

from hsfl.experiments import robust
from hsfl.experiments.robust import (
    ATTACKS,
    HELD,
    RULES,
    SHARES,
    RobustRun,
    mean_accuracy,
    robust_config,
)
from hsfl.runs.checks.unused_settings import refuse_unused
from tests.naming import names
from tests.small_runs import hsfl

FL = next(iter(HELD))


def invented() -> list[RobustRun]:
    """A median that no attack moves, and other rules that lose with the share."""
    return [
        RobustRun(FL, attack, rule, share, seed, 0.9 if rule == "median" else 0.9 - share + seed / 100, "finished")
        for attack in ("sign flip", "noise")
        for rule in RULES
        for share in SHARES
        for seed in range(3)
    ]


def test_every_setting_of_the_study_has_an_effect() -> None:
    for held in HELD:
        for attack in ATTACKS:
            for rule in RULES:
                for share in SHARES:
                    config = robust_config("full", held, attack, rule, share, 1)
                    words = [*HELD[held], *RULES[rule], *((*ATTACKS[attack], f"attack.share={share}") if share else ())]
                    refuse_unused(None, words, [config])
                    assert (config.attack.kind is None) == (share == 0)


def test_the_figure_and_the_table_are_those_of_the_csv(tmp_path: Path) -> None:
    runs = invented()
    outcome = robust._draw_robust(tmp_path, "quick", runs)
    (table,) = [path for path in outcome.files if path.suffix == ".csv"]
    rows = [
        RobustRun(*row[:3], float(row[3]), int(row[4]), float(row[5]), row[6])
        for row in list(csv.reader(table.open()))[1:]
    ]
    assert rows == runs
    assert (tmp_path / "robust.png").stat().st_size > 10_000
    assert mean_accuracy(runs, FL, "noise", "mean", 0.3).mean == pytest.approx(0.61)
    for trend in outcome.trends:
        names(trend.ours, "median 90.0", "mean 61.0")
    assert "| 90.0 ± 0.0 |" in outcome.markdown.read_text()


@pytest.mark.slow
def test_the_smallest_study_trains_once_and_draws_again(tmp_path: Path) -> None:
    words = ("reproduce", "robust", "--scale", "smoke", "--quiet", "--out", tmp_path)
    assert hsfl(*words).code == 0
    folders = sorted((tmp_path / "robust" / "runs").iterdir())
    before = [(folder / "rounds.jsonl").stat().st_mtime_ns for folder in folders]
    assert len(folders) == 2 * len(RULES)
    assert hsfl(*words).code == 0
    assert [(folder / "rounds.jsonl").stat().st_mtime_ns for folder in folders] == before
