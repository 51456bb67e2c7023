"""A plan beside runs as tables and sentences, for the terminal and the page: the clients and the round of a run, and the ranking of several
sets of cuts. What is shown is computed in `runs.prediction_check` and `runs.prediction_ranking`, whose records come in here as they are.
"""

from typing import Any

from hsfl.formats import brief, count, percent, seconds, significant
from hsfl.framework_table import METHODS
from hsfl.report.compared_runs import display_name

MOST_CLIENTS = 12  # of a table; of more clients those are shown whose prediction is farthest off
MOST_CUTS = 12  # of a list that is shown whole
HEADS = {"client": "own", "smashed": "up", "waiting": "waits", "server": "server", "gradient": "down"}
HEADS |= {"model_up": "model\nup", "model_down": "model\ndown"}

Rows = list[tuple[str, ...]]


def run_title(run: Any) -> str:
    """Which prediction a run is compared with. run: a `ComparedRun`."""
    return f"{run.run} as {run.plan} predicts it" if run.plan is not None else f"{run.run} as it predicted itself"


def clients_table(run: Any) -> tuple[tuple[str, ...], Rows]:
    """A head, and three rows for each client: predicted, measured, error. run: a `ComparedRun`."""
    farthest = sorted(run.clients, key=lambda client: -abs(client.predicted_s - client.measured_s))[:MOST_CLIENTS]
    names = [name for name in HEADS if any(name in client.phases for client in run.clients)]
    rows: Rows = []
    for client in (client for client in run.clients if client in farthest):
        predicted, measured, errors = zip(*(_cells(client.phases.get(name)) for name in names), _cells(client))
        rows.append((client.name.removeprefix("client "), str(client.cut), "predicted", *predicted))
        rows += [("", "", _took(run), *measured), ("", "", "error", *errors)]
    return ("client", "cut", "seconds", *(HEADS[name] for name in names), "all"), rows


def _took(run: Any) -> str:
    return "measured" if run.measured else "simulated"


def _cells(numbers: Any) -> tuple[str, str, str]:
    if numbers is None:
        return "-", "-", "-"
    return brief(numbers.predicted_s), brief(numbers.measured_s), _error_text(numbers.error)


def _error_text(error: float | None) -> str:
    return "-" if error is None else percent(round(error, 3) + 0.0, 1, sign=True)  # + 0.0: no -0.0%


def run_sentences(run: Any) -> list[str]:
    """The round of a run, predicted and measured, and its notes. run: a `ComparedRun`."""
    first, last = run.rounds[0], run.rounds[-1]
    which = f"round {first}" if first == last else f"median of {len(run.rounds)} rounds from {first} to {last}"
    spread = "" if first == last else f", {seconds(run.low_s, 4)} to {seconds(run.high_s, 4)}"
    measured = f"{_took(run)} {seconds(run.measured_s, 4)} ({which}{spread})"
    sentences = [
        f"the round: predicted {seconds(run.predicted_s, 4)}, {measured}: an error of {_error_text(run.error)}"
    ]
    if run.ending:
        predicted_s = sum(part.predicted_s for part in run.ending.values())
        parts = ", ".join(f"{name} {_ending_cells(part)}" for name, part in run.ending.items())
        sentences.append(
            f"the end of the round, in no client's phases: predicted {seconds(predicted_s, 3)}, {_took(run)} {seconds(run.ending_s, 3)} "
            f"({parts}: predicted and {_took(run)})"
        )
    if len(run.clients) > MOST_CLIENTS:
        sentences.append(f"shown are {MOST_CLIENTS} of {len(run.clients)} clients, whose prediction is farthest off")
    return sentences + [f"note: {note}" for note in run.notes]


def _ending_cells(part: Any) -> str:
    return f"{seconds(part.predicted_s, 3)} and {seconds(part.measured_s, 3)}"


def ranked_name(ranked: Any) -> str:
    """`1,4,5 (the plan)`, `4 for all` or `FL, 5 for all`. ranked: a `RankedCuts`."""
    distinct = sorted(set(ranked.cuts))
    cuts = ",".join(map(str, ranked.cuts))
    if len(distinct) == 1:
        cuts = f"{ranked.cuts[0]} for all"
    elif len(ranked.cuts) > MOST_CUTS:
        cuts = " ".join(f"{ranked.cuts.count(cut)}x{cut}" for cut in distinct)
    row = METHODS.get(ranked.framework)
    name = cuts if row is not None and row.own_cuts else f"{display_name(ranked.framework)}, {cuts}"
    return f"{name} (the plan)" if ranked.planned else name


def ranking_table(ranking: Any) -> tuple[tuple[str, ...], Rows]:
    """A head, and a row for each set of cuts, the fastest measured first. ranking: a `Ranking`."""
    rows: Rows = [
        (
            ranked_name(ranked),
            significant(ranked.predicted_s),
            significant(ranked.measured_s),
            f"{significant(ranked.low_s)} to {significant(ranked.high_s)}",
            _error_text(ranked.error),
            str(ranked.predicted_place),
            str(ranked.measured_place),
        )
        for ranked in ranking.sets
    ]
    return ("cuts", "predicted s", "measured s", "from, to", "error", "place\npredicted", "place\nmeasured"), rows


def ranking_sentences(ranking: Any) -> list[str]:
    """Kendall's tau, the regret and the mean error. ranking: a `Ranking`."""
    left_out = ranking.num_excluded
    excluded = f"; {count(left_out, 'pair')} left out, no farther apart than their spread" if left_out else ""
    sentences = [
        f"predicted order against measured order: no two of {len(ranking.sets)} sets are farther apart than their spread"
        if ranking.kendall_tau is None
        else f"predicted order against measured order: Kendall's tau {ranking.kendall_tau:.2f} over {count(ranking.num_pairs, 'pair')}{excluded}"
    ]
    if ranking.regret is not None:
        best = ranking.sets[0]
        than = (
            "the fastest of these" if best.planned else f"{ranked_name(best)} took least, {seconds(best.measured_s, 4)}"
        )
        sentences.append(f"regret of the planned cuts: {percent(ranking.regret, 1)} ({than})")
    if ranking.mean_abs_error is not None:
        sentences.append(
            f"mean absolute error of the round: {percent(ranking.mean_abs_error, 1)} over {len(ranking.sets)} sets"
        )
    return sentences
