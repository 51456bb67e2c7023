"""How far rules of averaging hold against simulated attackers: mean, clipped mean, trimmed mean and median, by the share of clients that attack.

A small study of our own, on scikit-learn's digits: nothing is downloaded. Where clients train the whole model (FL), attackers hold all of it;
with the scale `full`, HSFL with a small cut stands beside it, whose attackers hold a head alone. Runs are in `runs/`, a line for each in a CSV.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from hsfl.config import RunConfig, parse_config, with_changes
from hsfl.experiments.common import Outcome, Trend, claim, machine, say_mean, write_text
from hsfl.experiments.study_request import StudyRequest
from hsfl.files import write_csv
from hsfl.report.curves import Estimate, estimate
from hsfl.report.figure_style import FAINT, STYLE, add_side_legend, matplotlib, save_figure
from hsfl.report.tables import SummaryTable, markdown_rows, spread_note
from hsfl.runs.run_folder.folder import RunFolder, path_name
from hsfl.runs.studies.compare_runs import run_piece
from hsfl.runs.studies.run_many import Piece, run_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_CLIENTS, NUM_SEEDS, NUM_CLASSES = 10, 3, 10
NUM_IMAGES = 1438  # of digits, for training
RULES: dict[str, tuple[str, ...]] = {
    "mean": (),
    "clipped mean": ("train.clip_norm=0.3",),  # as long as an honest update of the first rounds
    "trimmed mean": ("train.average=trimmed_mean", "train.trim=0.3"),
    "median": ("train.average=median",),
}
ATTACKS = {
    "label flip": ("attack.kind=label_flip",),
    "sign flip": ("attack.kind=sign_flip", "attack.scale=5"),
    "scaled update": ("attack.kind=scaled_update", "attack.scale=50"),
    "noise": ("attack.kind=noise", "attack.scale=50"),
}
HELD = {  # what a client holds
    "whole model (FL)": ("framework=fl",),
    "head of 2 units of 5 (HSFL)": ("framework=hsfl", "fleet.cuts=2", "fleet.max_cut=5"),
}
SHARES = (0.0, 0.1, 0.2, 0.3)
STYLES = {  # colour and marker by rule
    "mean": ("#555555", "x"),
    "clipped mean": ("#0072B2", "s"),
    "trimmed mean": ("#009E73", "^"),
    "median": ("#D55E00", "o"),
}
ROUNDS = {"smoke": 2, "quick": 10, "full": 20}
LIMIT = {"smoke": 100, "quick": 600, "full": 1200}


@dataclass(frozen=True)
class RobustRun:
    """One training, and how good it is after its last round."""

    held: str
    attack: str
    rule: str
    share: float
    seed: int
    accuracy: float
    status: str  # a run that diverged has the accuracy of a guess


def robust_config(scale: str, held: str, attack: str, rule: str, share: float, seed: int) -> RunConfig:
    """A training of the study."""
    train = {
        "rounds": ROUNDS[scale],
        "eval_every": ROUNDS[scale],
        "batch_size": 16,
        "optimizer": "momentum",
        "lr": 0.02,
    }
    base = parse_config(
        {
            "seed": seed,
            "model": {"name": "cnn", "norm": "group"},
            "data": {"name": "digits", "limit": LIMIT[scale]},
            "fleet": {"num_clients": NUM_CLIENTS},
            "network": {"sample_scale": round(NUM_IMAGES / LIMIT[scale], 2)},
            "allocation": {"policy": "even"},  # nobody looks at the seconds
            "train": train | {"momentum": 0.9},
        }
    )
    attacked = (*ATTACKS[attack], f"attack.share={share}") if share else ()
    return with_changes(base, [*HELD[held], *RULES[rule], *attacked])


def reproduce_robust(request: StudyRequest) -> Outcome:
    """Train what is missing, and draw. With share 0 there is one training for all attacks."""
    out, scale = request.out, request.scale
    seeds = range(request.num_seeds or (1 if scale == "smoke" else NUM_SEEDS))
    held = tuple(HELD) if scale == "full" else tuple(HELD)[:1]
    attacks = ("sign flip",) if scale == "smoke" else tuple(ATTACKS)
    shares = (SHARES[0], SHARES[-1]) if scale == "smoke" else SHARES
    claim(out, {"scale": scale, "rules": RULES, "attacks": {name: ATTACKS[name] for name in attacks}})
    pieces = {key: _piece(out, scale, *key) for key in _keys(held, attacks, shares, seeds)}
    request.say(f"{len(set(pieces.values()))} trainings of {ROUNDS[scale]} rounds")
    run_all(list(dict.fromkeys(pieces.values())), run_piece, _has_ended, request.jobs, request.show)
    runs = [RobustRun(*key, *_result(piece.path)) for key, piece in pieces.items()]
    return _draw_robust(out, scale, runs)


def _keys(
    held: Sequence[str], attacks: Sequence[str], shares: Sequence[float], seeds: Sequence[int]
) -> Iterator[tuple[str, str, str, float, int]]:
    for holder in held:
        for attack in attacks:
            for rule in RULES:
                for share in shares:
                    yield from ((holder, attack, rule, share, seed) for seed in seeds)


def _piece(out: Path, scale: str, held: str, attack: str, rule: str, share: float, seed: int) -> Piece:
    name = f"{rule}, {attack if share else 'no attack'} {share:g}, {held}, seed {seed}"
    config = robust_config(scale, held, attack, rule, share, seed)
    return Piece(name, held, config, out / "runs" / path_name(name))


def _has_ended(piece: Piece) -> bool:
    """A run that diverged has ended, too: it would diverge again."""
    return RunFolder(piece.path).ended().status in ("finished", "budget", "diverged")


def _result(path: Path) -> tuple[float, str]:
    """Accuracy after the last round, and how the run ended."""
    folder = RunFolder(path)
    status, rounds = folder.ended().status, folder.rounds()
    accuracy = rounds[-1].test_accuracy if rounds and status != "diverged" else None
    return (1 / NUM_CLASSES if accuracy is None else accuracy), status


def mean_accuracy(runs: Sequence[RobustRun], held: str, attack: str, rule: str, share: float) -> Estimate:
    """Over seeds."""
    key = (held, attack, rule, share)
    return estimate(run.accuracy for run in runs if (run.held, run.attack, run.rule, run.share) == key)


def _draw_robust(out: Path, scale: str, runs: Sequence[RobustRun]) -> Outcome:
    """CSV, figure and table."""
    header = [field.name for field in fields(RobustRun)]
    files = [
        write_csv(out / f"robust-{scale}.csv", header, map(astuple, runs)),
        *save_figure(_panels(runs), out / "robust"),
    ]
    table, seeds = _robust_table(runs), len({run.seed for run in runs})
    text = (
        "### Rules of averaging under attack\n\n![accuracy by the share of clients that attack](robust.png)\n\n"
        f"Scale {scale}, n = {seeds}: {LIMIT[scale]} training images of digits, {NUM_CLIENTS} clients, cnn with group norm, batches of 16, momentum "
        f"0.02, {ROUNDS[scale]} rounds. {machine()}\n\n{markdown_rows(table)}"
    )
    return Outcome("robust", write_text(out / "robust.md", text), files, _robust_trends(runs), [table])


def _places(runs: Sequence[RobustRun]) -> list[tuple[str, str]]:
    """What is held, and the attack, of each panel."""
    return list(dict.fromkeys((run.held, run.attack) for run in runs))


def _shares(runs: Sequence[RobustRun]) -> list[float]:
    return sorted({run.share for run in runs})


def _robust_trends(runs: Sequence[RobustRun]) -> list[Trend]:
    """Which rule is best under the largest share of attackers. The paper says nothing of attackers."""
    trends, share = [], _shares(runs)[-1]
    for held, attack in _places(runs):
        means = {rule: mean_accuracy(runs, held, attack, rule, share) for rule in RULES}
        best = max(RULES, key=lambda rule: means[rule].mean or 0.0)
        finding = f"{best} {say_mean(means[best], 100)} %, mean {say_mean(means['mean'], 100)} %"
        trends.append(Trend(f"(not in the paper) {attack}, {share:.0%} of the clients, {held}", finding, None))
    return trends


def _robust_table(runs: Sequence[RobustRun]) -> SummaryTable:
    rows = [
        [
            f"{attack}, {held}",
            rule,
            *(say_mean(mean_accuracy(runs, held, attack, rule, share), 100) for share in _shares(runs)),
        ]
        for held, attack in _places(runs)
        for rule in RULES
    ]
    header = ["attack, and what a client holds", "rule", *(f"{share:.0%}" for share in _shares(runs))]
    note = spread_note([len({run.seed for run in runs})])
    return SummaryTable("robust-accuracy", "Accuracy in % by the share of clients that attack", header, rows, note)


def _end(value: Estimate, end: str) -> float:
    """An end of the interval; the mean where there is no interval."""
    limit: float | None = getattr(value, end)
    return (value.mean or 0.0) if limit is None else limit


def _panels(runs: Sequence[RobustRun]) -> "Figure":
    """A row of panels for what clients hold, one panel for each attack: accuracy by share, a line for each rule."""
    mpl, places, shares = matplotlib(), _places(runs), _shares(runs)
    held, attacks = list(dict.fromkeys(h for h, _ in places)), list(dict.fromkeys(a for _, a in places))
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(2.6 * len(attacks) + 1.8, 2.6 * len(held) + 0.6), layout="constrained")
        panels = figure.subplots(len(held), len(attacks), sharex=True, sharey=True, squeeze=False)
        for (holder, attack), panel in zip(places, panels.flat):
            for rule, (colour, marker) in STYLES.items():
                values = [mean_accuracy(runs, holder, attack, rule, share) for share in shares]
                means = [100 * (value.mean or 0.0) for value in values]
                low, high = ([100 * _end(value, end) for value in values] for end in ("low", "high"))
                panel.fill_between(shares, low, high, color=colour, alpha=0.10, linewidth=0)
                panel.plot(shares, means, color=colour, marker=marker, markersize=4, linewidth=1.6, label=rule)
            panel.set_title(attack if len(held) == 1 else f"{attack}\n{holder}", fontsize=9)
            panel.set_ylim(0, 100)
        for panel in panels[-1]:
            panel.set_xlabel("share of clients that attack")
        for row in panels:
            row[0].set_ylabel("accuracy in %")
        add_side_legend(figure, *panels[0][0].get_legend_handles_labels())
        num_seeds = len({run.seed for run in runs})
        figure.supxlabel(
            f"mean over n = {num_seeds} seed{'s; band: 95 % interval' if num_seeds > 1 else ''}",
            fontsize=8,
            color=FAINT,
        )
    return figure
