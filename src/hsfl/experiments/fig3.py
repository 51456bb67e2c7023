"""Fig. 3: the loss on HAM10000 over simulated time and over rounds, from Table 1's run folders."""

from collections.abc import Sequence
from pathlib import Path

from hsfl.experiments import table1
from hsfl.experiments.shared import (
    FORMATS,
    Outcome,
    Say,
    Trend,
    machine,
    say_mean,
    table,
    trend_table,
    write_csv,
    write_text,
)
from hsfl.report.comparison import CSV_FIELDS, Comparison, csv_row, read_comparison
from hsfl.report.curves import estimate
from hsfl.report.figure import save
from hsfl.report.plots import learning_figure
from hsfl.report.runs import Run, display_name

DATA = "ham10000"
LOSSES = ("train_loss", "test_loss")


def run(
    out: Path,
    scale: str,
    num_seeds: int | None,
    say: Say,
    labels: Sequence[str] = table1.FIVE,
    datasets: Sequence[str] = (DATA,),
    data_dir: Path | None = None,
    make_observer: table1.MakeObserver = lambda name: table1.Observer(),
) -> Outcome:
    """Draw from `table1` beside `out`, training there what is missing."""
    runs = out.parent / "table1"
    table1.train(runs, scale, num_seeds, say, labels, datasets, data_dir, make_observer)
    return draw(out, runs, labels, datasets[0])


def draw(out: Path, runs: Path, labels: Sequence[str] = table1.FIVE, data: str = DATA) -> Outcome:
    """Losses at one budget of seconds and at equal rounds: CSV, figures and a table."""
    files: list[Path] = []
    sets = {
        which: read_comparison(runs / data / which, labels=table1.labels_in(which, labels)) for which in table1.SETS
    }
    for which, comparison in sets.items():
        for quantity in LOSSES:
            name = f"fig3-{quantity.replace('_', '-')}" + ("-equal-rounds" if which == "rounds" else "")
            files += save(learning_figure(comparison, quantity), out / name, FORMATS)
    rows = [[which, *csv_row(run, r)] for which, found in sets.items() for run in found.runs for r in run.records]
    files.append(write_csv(out / "fig3.csv", ["set", *CSV_FIELDS], rows))
    trends = find_trends(sets["budget"])
    text = (
        f"### Fig. 3: convergence on {data}\n\n![training loss at one budget of seconds](fig3-train-loss.png)\n\n"
        "![training loss at equal rounds, nobody dropped](fig3-train-loss-equal-rounds.png)\n\n"
        + trend_table(trends)
        + f"\n{count_of(sets['budget'])}. The runs and their settings are Table 1's (`{runs.name}.md` has them). {machine()}\n\n"
        + loss_table(sets["budget"])
    )
    return Outcome("fig3", write_text(out / "fig3.md", text), files, trends)


def count_of(comparison: Comparison) -> str:
    """How many seeds the numbers are means of, and what stands behind the plus-minus."""
    most = max(len(comparison.runs_of(label)) for label in comparison.labels)
    return "n = 1 seed, no interval" if most == 1 else f"n = {most} seeds, mean ± half of the 95 % interval"


def loss_at(run: Run, sim_time_s: float) -> float | None:
    """The training loss of the last round that ended by then."""
    values = [record.train_loss for record in run.records if record.sim_time_s <= sim_time_s]
    return next((value for value in reversed(values) if value is not None), None)


def loss_table(comparison: Comparison) -> str:
    """Training loss at fractions of the budget."""
    fractions = (0.1, 0.25, 0.5, 1.0)
    budget_s = max(run.end_s for run in comparison.runs)
    rows = []
    for label in comparison.labels:
        own = comparison.runs_of(label)
        means = [estimate(loss_at(run, part * budget_s) for run in own) for part in fractions]
        rows.append([display_name(label), *(say_mean(mean, digits=4) for mean in means)])
    header = ["training loss at", *(f"{part:g} of {budget_s:,.0f} s" for part in fractions)]
    return table(header, rows)


def find_trends(comparison: Comparison) -> list[Trend]:
    """Whether HSFL's loss falls faster per simulated second than the other parallel frameworks', and how near CL is."""
    middle_s = 0.5 * max(run.end_s for run in comparison.runs)
    means = {
        label: estimate(loss_at(run, middle_s) for run in comparison.runs_of(label)).mean for label in comparison.labels
    }
    known = {label: value for label, value in means.items() if value is not None}
    if "hsfl" not in known:
        return []
    ours = known["hsfl"]
    words = ", ".join(
        f"{display_name(label)} " + ("has made no round" if value is None else f"{value:.3f}")
        for label, value in means.items()
    )
    alone = all(len(comparison.runs_of(label)) == 1 for label in comparison.labels)
    slower = [label for label in known if label not in ("hsfl", "cl")]
    others = [label for label in means if label not in ("hsfl", "cl")]
    trends = [
        Trend(
            "HSFL converges faster than SplitFed, FL and SL",
            f"training loss at half of the budget: {words}" + (" (one seed, which decides nothing)" if alone else ""),
            all(ours < known[label] for label in slower) if others and not alone else None,
        )
    ]
    if "cl" in known:
        says = f"HSFL {ours:.3f}, CL {known['cl']:.3f} at half of the budget"
        trends.append(Trend("HSFL's convergence is close to CL's", says, abs(ours - known["cl"]) <= 0.1 * known["cl"]))
    return trends
