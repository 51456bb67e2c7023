"""What the testbed measured: on the screen after each fleet, and over all fleets as CSV files, a table in docs/prediction.md and a figure."""

import csv
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.codec_table import NONE
from hsfl.commands.console import out_console, show_table
from hsfl.errors import InputError
from hsfl.files import write_atomic
from hsfl.formats import percent
from hsfl.report.figure_style import FAINT, INK, STYLE, matplotlib
from hsfl.report.prediction_tables import ranking_sentences, ranking_table
from hsfl.runs.prediction_check import ComparedRun, compared
from hsfl.runs.prediction_ranking import PlanCheck, RankedCuts, Ranking, rank_cuts
from testbed_parts.fleets import Fleet, as_json

BEGIN, END = "<!-- testbed report: begin -->", "<!-- testbed report: end -->"
GOAL = {"regret": 0.03, "mean": 0.03, "95": 0.08, "tau": 0.95}
COLUMNS = ("fleet", "bound", "model", "codec", "speed", "set", "cuts", "block", "predicted_s", "rounds_s", "ending_s")
PHASE_COLUMNS = ("fleet", "model", "codec", "speed", "set", "block", "phase", "predicted_s", "measured_s")
RESULT = "trial.json"  # the last file of a trial
PLANNED = "planned"  # the set that is judged
COLOURS = {"links": "#0072B2", "devices": "#D55E00", "server": "#009E73"}
MARKERS = {"resnet18": "o", "cnn": "s"}


# --- one fleet


def keep_check(folder: Path, fleet: Fleet, model: str, codec: str, slowdown: bool, check: PlanCheck) -> None:
    """The rows of a fleet and model: a row for each block of rounds, and a row for each block and phase, over all clients."""
    about = {
        "fleet": fleet.name,
        "bound": fleet.bound,
        "model": model,
        "codec": codec,
        "speed": "slowdown" if slowdown else "quota",
        "load_average": os.getloadavg()[0],
    }
    rows, phases = [], []
    for run in check.runs:
        block, _, name = Path(run.run).name.partition("-")
        rows.append({"set": name, "cuts": run.cuts, "block": int(block), "predicted_s": run.predicted_s,
                     "rounds_s": run.rounds_s, "ending_s": run.ending_s})  # fmt: skip
        for phase, (predicted_s, measured_s) in phase_totals([run]).items():
            phases.append({"set": name, "block": int(block), "phase": phase, "predicted_s": predicted_s, "measured_s": measured_s})  # fmt: skip
    content = as_json(about | {"rows": rows, "phases": phases})
    write_atomic(folder / RESULT, lambda scratch: scratch.write_text(content))


def phase_totals(runs: Sequence[ComparedRun]) -> dict[str, tuple[float, float]]:
    """Predicted and measured seconds of each phase over all clients of the runs, and of each part of the round's end."""
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for run in runs:
        for client in run.clients:
            for phase, values in client.phases.items():
                totals[phase][0] += values.predicted_s
                totals[phase][1] += values.measured_s
        for part, values in run.ending.items():
            totals[f"end: {part}"][0] += values.predicted_s
            totals[f"end: {part}"][1] += values.measured_s
    return {phase: (predicted_s, measured_s) for phase, (predicted_s, measured_s) in totals.items()}


def show_check(check: PlanCheck) -> None:
    """The ranking, and the phases of all clients and sets together."""
    totals = phase_totals(check.runs)
    rows = [
        (phase, f"{predicted_s:.4g}", f"{measured_s:.4g}", percent(predicted_s / measured_s - 1, 1, sign=True) if measured_s else "-")
        for phase, (predicted_s, measured_s) in totals.items()
    ]  # fmt: skip
    show_table(out_console, ["phase, all clients", "predicted s", "measured s", "error"], rows)
    if check.ranking is not None:
        show_table(out_console, *ranking_table(check.ranking))
        for sentence in ranking_sentences(check.ranking):
            out_console.print(sentence, soft_wrap=True)


# --- all fleets


@dataclass(frozen=True)
class Trials:
    """The runs of a fleet and model with their ranking."""

    fleet: str
    bound: str
    model: str
    codec: str
    speed: str
    names: dict[tuple[int, ...], str]  # of the sets, by their cuts
    ranking: Ranking

    @property
    def work(self) -> str:
        """The model, with the codec where there is one."""
        return self.model if self.codec == NONE else f"{self.model}, {self.codec}"

    @property
    def planned(self) -> RankedCuts | None:
        """The set of planned cuts."""
        return next((ranked for ranked in self.ranking.sets if ranked.planned), None)


def report(folders: Sequence[Path], results: Path, document: Path, machine: str) -> None:
    """Gather what trials wrote into the CSV files beside `results`, where folders are given, and write table and figure from these."""
    if folders:
        _gather(folders, results)
    trials = read_trials(results)
    figure = document.parent / "figures" / "prediction.png"
    figure.parent.mkdir(parents=True, exist_ok=True)
    draw_rounds(trials).savefig(figure, dpi=150, metadata={"Software": None})
    text = document.read_text()
    before, middle, after = (*text.partition(BEGIN)[:2], text.partition(END)[2])
    if not middle or not after:
        raise InputError(f"{document} has no lines {BEGIN} and {END}; put them where the table belongs")
    link = os.path.relpath(figure, document.parent)
    document.write_text(f"{before}{BEGIN}\n\n{report_text(trials, machine, link)}\n{END}{after}")
    out_console.print(f"wrote {document}, {figure} and {results}", soft_wrap=True)


def _gather(folders: Sequence[Path], results: Path) -> None:
    files = sorted(file for folder in folders for file in folder.glob(f"**/{RESULT}"))
    if not files:
        raise InputError(f"{folders[0]} holds no {RESULT}; give the folder of python benchmarks/testbed.py run -o")
    blocks, phases = [], []
    for file in files:
        about = json.loads(file.read_text())
        for row in about.pop("rows"):
            lists = {
                "cuts": " ".join(map(str, row["cuts"])),
                "rounds_s": " ".join(f"{one:.6g}" for one in row["rounds_s"]),
            }
            blocks.append(about | row | lists)
        phases += [about | row for row in about.pop("phases")]
    results.parent.mkdir(parents=True, exist_ok=True)
    for path, columns, rows in ((results, COLUMNS, blocks), (_phases_path(results), PHASE_COLUMNS, phases)):
        with path.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows({name: _short(value) for name, value in row.items()} for row in rows)


def _short(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def _phases_path(results: Path) -> Path:
    return results.with_name(f"{results.stem}-phases{results.suffix}")


def read_trials(results: Path) -> list[Trials]:
    """The rankings of each fleet and model, from the CSV file. Blocks of a set are repeats."""
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = defaultdict(list)
    with results.open(newline="") as opened:
        for row in csv.DictReader(opened):
            groups[row["fleet"], row["bound"], row["model"], row.get("codec") or NONE, row["speed"]].append(row)
    trials = []
    for key, rows in groups.items():
        runs = [_run_of(row) for row in rows]
        planned = next((run.plan for run in runs if run.plan and PLANNED in run.plan.split("+")), PLANNED)
        names = {tuple(run.cuts): str(run.plan) for run in runs}
        if (ranking := rank_cuts(runs, planned)) is not None:
            trials.append(Trials(*key, names, ranking))
    return trials


def _run_of(row: Mapping[str, str]) -> ComparedRun:
    rounds_s = [float(word) for word in row["rounds_s"].split()]
    values = vars(compared(float(row["predicted_s"]), rounds_s)) | {
        "run": f"{row['block']}-{row['set']}", "plan": row["set"], "framework": "hsfl", "cuts": [int(word) for word in row["cuts"].split()],
        "measured": True, "rounds": list(range(2, 2 + len(rounds_s))), "rounds_s": rounds_s, "clients": [], "notes": [],
        "ending_s": None, "ending": {},
    }  # fmt: skip
    return ComparedRun(**values)


@dataclass(frozen=True)
class Totals:
    """All trials together."""

    num_sets: int
    num_rounds: int
    worst_regret: float
    mean_regret: float
    mean_error: float
    error_95: float
    tau: float | None
    num_pairs: int
    num_excluded: int


def totals(trials: Sequence[Trials]) -> Totals:
    rankings = [trial.ranking for trial in trials]
    errors = [abs(one.error) for ranking in rankings for one in ranking.sets if one.error is not None]
    regrets = [ranking.regret for ranking in rankings if ranking.regret is not None]
    num_pairs = sum(ranking.num_pairs for ranking in rankings)
    agreement = sum((ranking.kendall_tau or 0.0) * ranking.num_pairs for ranking in rankings)
    return Totals(
        num_sets=len(errors),
        num_rounds=sum(len(one.runs) for ranking in rankings for one in ranking.sets),
        worst_regret=max(regrets, default=float("nan")),
        mean_regret=float(np.mean(regrets)) if regrets else float("nan"),
        mean_error=float(np.mean(errors)),
        error_95=float(np.percentile(errors, 95)),
        tau=agreement / num_pairs if num_pairs else None,
        num_pairs=num_pairs,
        num_excluded=sum(ranking.num_excluded for ranking in rankings),
    )


def report_text(trials: Sequence[Trials], machine: str, figure: str) -> str:
    """The generated part of docs/prediction.md."""
    lines = [f"{machine}\n"] if machine else []
    for speed, title in (
        ("quota", "Slow devices by CPU quotas"),
        ("slowdown", "Slow devices by sleeping in proportion"),
    ):
        chosen = [trial for trial in trials if trial.speed == speed]
        if chosen:
            lines += [f"**{title}**\n", *_summary_lines(totals(chosen)), "", *_trial_lines(chosen), ""]
            lines += _codec_lines(chosen)
    lines.append(f"![Predicted against measured rounds]({figure})")
    return "\n".join(lines) + "\n"


def _summary_lines(all_: Totals) -> list[str]:
    tau = "-" if all_.tau is None else f"{all_.tau:.3f}"
    rows = [
        ("regret of the planned cuts, worst", percent(all_.worst_regret, 1), f"{GOAL['regret']:.0%}"),
        ("regret, mean", percent(all_.mean_regret, 1), ""),
        ("error of the round, mean", percent(all_.mean_error, 1), f"{GOAL['mean']:.0%}"),
        ("error of the round, 95 % of the sets within", percent(all_.error_95, 1), f"{GOAL['95']:.0%}"),
        (f"Kendall's tau over {all_.num_pairs} pairs ({all_.num_excluded} not told apart)", tau, f"{GOAL['tau']:g}"),
    ]
    head = [
        f"n = {all_.num_sets} cut sets in {all_.num_rounds} blocks of rounds.",
        "",
        "| what | measured | goal |",
        "| --- | --- | --- |",
    ]
    return [*head, *(f"| {' | '.join(row)} |" for row in rows)]


def _codec_lines(trials: Sequence[Trials]) -> list[str]:
    """What a codec saves of the planned rounds of a fleet and model, predicted and measured; each with the cuts that were planned for it."""
    plain = {(trial.fleet, trial.model): trial.planned for trial in trials if trial.codec == NONE}
    rows = []
    for trial in trials:
        before, after = plain.get((trial.fleet, trial.model)), trial.planned
        if trial.codec == NONE or before is None or after is None:
            continue
        seconds = [f"{one.predicted_s:.2f}, {one.measured_s:.2f}" for one in (before, after)]
        gains = [f"{before.predicted_s / after.predicted_s:.2f}", f"{before.measured_s / after.measured_s:.2f}"]
        rows.append(f"| {' | '.join([trial.fleet, trial.work, *seconds, *gains])} |")
    if not rows:
        return []
    head = [
        "| fleet | model, codec | predicted, measured s without | with | gain, predicted | gain, measured |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    return ["With codecs, planned cuts each:", "", *head, *rows, ""]


def _trial_lines(trials: Sequence[Trials]) -> list[str]:
    lines = [
        "| fleet | model | planned cuts | predicted s | measured s | best measured set | regret | mean error | tau (pairs, left out) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for trial in trials:
        ranking = trial.ranking
        planned = trial.planned
        best = ranking.sets[0]
        cells = [trial.fleet, trial.work]
        cells += (
            ["-"] * 3
            if planned is None
            else [" ".join(map(str, planned.cuts)), f"{planned.predicted_s:.2f}", f"{planned.measured_s:.2f} ({planned.low_s:.2f} to {planned.high_s:.2f})"]
        )  # fmt: skip
        tau = "-" if ranking.kendall_tau is None else f"{ranking.kendall_tau:.2f}"
        cells += [
            f"{trial.names[tuple(best.cuts)]}, {best.measured_s:.2f}",
            "-" if ranking.regret is None else percent(ranking.regret, 1),
            "-" if ranking.mean_abs_error is None else percent(ranking.mean_abs_error, 1),
            f"{tau} ({ranking.num_pairs}, {ranking.num_excluded})",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def draw_rounds(trials: Sequence[Trials]) -> Any:
    """Predicted against measured rounds of all cut sets, with the diagonal; planned sets are filled."""
    mpl = matplotlib()
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(6.4, 5.2), layout="constrained")
        axes = figure.subplots()
        ends = [
            value
            for trial in trials
            for one in trial.ranking.sets
            for value in (one.low_s, one.high_s, one.predicted_s)
        ]
        limits = (min(ends) / 1.2, max(ends) * 1.2)
        axes.set(
            xscale="log",
            yscale="log",
            xlim=limits,
            ylim=limits,
            aspect="equal",
            xlabel="measured s",
            ylabel="predicted s",
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(mpl.ticker.NullFormatter())
        axes.plot(limits, limits, color=FAINT, lw=1.2, zorder=1, label="predicted = measured")
        for factor in (0.9, 1.1):
            axes.plot(limits, [factor * end for end in limits], color=FAINT, lw=0.7, ls=(0, (4, 3)), zorder=1)
        labelled = set()
        for trial in trials:
            label = f"{trial.work}, bound by {trial.bound}"
            for one in trial.ranking.sets:
                colour = COLOURS.get(trial.bound, INK)
                axes.errorbar(
                    [one.measured_s], [one.predicted_s], xerr=[[one.measured_s - one.low_s], [one.high_s - one.measured_s]],
                    fmt=MARKERS.get(trial.model, "D"), ms=5.5, color=colour, mfc=colour if one.planned else "white", elinewidth=0.9,
                    label=None if label in labelled else label,
                )  # fmt: skip
                labelled.add(label)
        axes.set_title("rounds of all cut sets (filled: planned; dashed: 10 %)", loc="left", fontsize=10.5)
        axes.legend(frameon=False, fontsize=8.5)
    return figure
