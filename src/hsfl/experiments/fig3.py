"""Fig. 3: the loss on HAM10000 over simulated time and over rounds, from Table 1's traces and fleets."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hsfl.experiments.common import Outcome, Trend, machine, say_mean, trend_table, write_text
from hsfl.experiments.statistics import over_fleets_and_seeds, verdicts
from hsfl.experiments.study_request import StudyRequest
from hsfl.experiments.table1.columns import COLUMNS
from hsfl.experiments.table1.table1_report import HOLDS, learning_over_fleets, say_p, spread_of, verdict_note
from hsfl.experiments.table1.table1_study import Study, make_study, values_at
from hsfl.files import write_csv
from hsfl.framework_table import PROPOSED
from hsfl.report.figure_style import save_figure
from hsfl.report.tables import SummaryTable, ValueCell, markdown_rows

Array = np.ndarray
FRACTIONS = (0.1, 0.25, 0.5, 1.0)
LOSSES = ("train_loss", "test_loss")
SLOWER = ("splitfed_v1", "fl", "sl")  # the paper's claim names these
CENTRAL = "cl"  # whose convergence the paper calls close


def reproduce_fig3(request: StudyRequest) -> Outcome:
    """Draw from `table1` beside `out`, training there what is missing."""
    out, data = request.out, request.datasets[0]
    study = make_study(replace(request, out=out.parent / "table1", datasets=(data,)))
    return _draw_fig3(out, study, data)


def _draw_fig3(out: Path, study: Study, data: str) -> Outcome:
    """Losses over time and rounds: CSV, figures and a table."""
    files: list[Path] = []
    for quantity in LOSSES:
        files += save_figure(learning_over_fleets(study, data, quantity), out / f"fig3-{quantity.replace('_', '-')}")
    rows = [
        [
            column,
            seed,
            fraction,
            *("" if value is None else value for value in _losses(study, data, column, seed, fraction)),
        ]
        for column in study.columns
        for seed in study.seeds
        for fraction in FRACTIONS
    ]
    files.append(write_csv(out / "fig3.csv", ["column", "seed", "fraction", *LOSSES], rows))
    trends, losses = _fig3_trends(study, data), _loss_table(study, data)
    text = (
        f"### Fig. 3: convergence on {data}\n\n![training loss](fig3-train-loss.png)\n\n"
        + trend_table(trends, undecided=True)
        + f"\n{verdict_note(_num_tested(trends), len(study.answers) // len(study.seeds), len(study.seeds))} The trainings and their "
        f"settings are Table 1's. {machine()}\n\n" + markdown_rows(losses)
    )
    return Outcome("fig3", write_text(out / "fig3.md", text), files, trends, [losses])


def _num_tested(trends: Sequence[Trend]) -> int:
    """How many claims are verdicts: all but that on CL, whose closeness is no test."""
    return sum(trend.paper.startswith("HSFL converges") for trend in trends)


def _losses(study: Study, data: str, column: str, seed: int, fraction: float) -> list[float | None]:
    """Fleet-averaged losses of a seed when a fraction of the budget is spent; None where a fleet has made no round."""
    return [_mean(values_at(study, data, column, seed, fraction, quantity)) for quantity in LOSSES]


def _mean(values: Sequence[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return float(np.mean(known_values)) if len(known_values) == len(values) else None


def _losses_at(study: Study, data: str, column: str, fraction: float) -> Array:
    """Training losses on every fleet with every training seed when a fraction of the budget is spent, [F, S]; NaN where no round fits."""
    by_seed = [values_at(study, data, column, seed, fraction, LOSSES[0]) for seed in study.seeds]
    return np.array(by_seed, float).T


def _loss_table(study: Study, data: str) -> SummaryTable:
    """Training loss at fractions of the budget, mean over fleets and seeds."""
    rows = []
    for column in study.columns:
        losses = (_losses_at(study, data, column, fraction) for fraction in FRACTIONS)
        rows.append([COLUMNS[column].title, *map(_say_losses, losses)])
    header = ["training loss at", *(f"{fraction:g} of the budget" for fraction in FRACTIONS)]
    num_fleets, num_seeds = len(study.answers) // len(study.seeds), len(study.seeds)
    return SummaryTable("fig3-losses", f"Training loss on {data}", header, rows, spread_of(num_fleets, num_seeds))


def _say_losses(losses: Array) -> ValueCell:
    """The mean over fleets and seeds with its interval; where some fleets have no loss, the mean of the others, and how many they are."""
    known_share = np.isfinite(losses).mean()
    note = f" ({100 * known_share:.0f} % of fleets have a round)" if 0 < known_share < 1 else ""
    mean = say_mean(over_fleets_and_seeds(losses), digits=3)
    return ValueCell(mean + note, mean.value)


def _fig3_trends(study: Study, data: str) -> list[Trend]:
    """Whether HSFL's training loss is below the other distributed frameworks' at half of the budget, and how near CL is."""
    half = {column: _losses_at(study, data, column, 0.5) for column in study.columns}
    half = {column: losses for column, losses in half.items() if np.isfinite(losses).all()}
    if PROPOSED not in half:
        return []
    slower_names = [name for name in SLOWER if name in half]
    trends = []
    for slower_name, verdict in zip(
        slower_names, verdicts([half[slower_name] - half[PROPOSED] for slower_name in slower_names])
    ):
        p_words = "n = 1 seed" if verdict.corrected_p is None else say_p(verdict.corrected_p)
        finding = f"training loss at half of the budget lower by {say_mean(verdict.difference, digits=3)} ({p_words}): {verdict.answer}"
        trends.append(Trend(f"HSFL converges faster than {COLUMNS[slower_name].title}", finding, HOLDS[verdict.answer]))
    if CENTRAL in half:
        ours, central = (float(half[name].mean()) for name in (PROPOSED, CENTRAL))
        closeness = f"HSFL {ours:.3f}, CL {central:.3f} at half of the budget (close would be within 10 % of CL's)"
        trends.append(Trend("HSFL's convergence is close to CL's", closeness, abs(ours - central) <= 0.1 * central))
    return trends
