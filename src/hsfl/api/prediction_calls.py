"""`hsfl.plan_check`: a plan beside what runs took."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsfl.api.notebook_figure import shown_in_notebooks
from hsfl.display import OnScreen, Rows, Screen
from hsfl.report.prediction_figure import prediction_figure
from hsfl.report.prediction_page import write_check
from hsfl.report.prediction_tables import ranking_sentences, run_sentences
from hsfl.runs.prediction_check import RoundSpan
from hsfl.runs.prediction_ranking import PlanCheck, check_plans

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Places = str | Path | Sequence[str | Path]


@dataclass(frozen=True, repr=False)
class PlanCheckResult(OnScreen, PlanCheck):
    """Predicted and measured seconds of runs, and how well the predictions rank their cuts."""

    def table(self) -> Rows:
        """A plain row for each run, client and phase; a client's phases together are the phase `all`."""
        return Rows(
            {"run": run.run, "client": client.client, "name": client.name, "cut": client.cut, "phase": phase}
            | {name: getattr(numbers, name) for name in ("predicted_s", "measured_s", "low_s", "high_s", "error")}
            for run in self.runs
            for client in run.clients
            for phase, numbers in {**client.phases, "all": client}.items()
        )

    def plot(self) -> "Figure":
        """Predicted against measured seconds, with the diagonal."""
        return shown_in_notebooks(prediction_figure(self))

    def to_json(self) -> dict[str, Any]:
        """The comparison as `hsfl plan-check --json` prints it."""
        return asdict(self)

    def screen(self) -> Screen:
        """The sentences of the ranking, or of a single run, and a row for each run."""
        if self.ranking is not None:
            sentences = ranking_sentences(self.ranking)
        else:
            sentences = [sentence for run in self.runs for sentence in run_sentences(run)]
        rows = [(run.run, run.predicted_s, run.measured_s, run.low_s, run.high_s, run.error) for run in self.runs]
        return Screen(sentences, ("run", "predicted s", "measured s", "least s", "most s", "error"), rows)


def plan_check(plan: Places, runs: Places, *, rounds: str = "2-", out: str | Path | None = None) -> PlanCheckResult:
    """Compare a plan with runs: seconds of each client's phases and of the round, predicted and measured, and the order of several cuts.

    plan: the folder or the file of a plan; of several the first is judged, and the others predict runs with their cuts. runs: one or more
    folders. A run whose cuts no plan has is compared with its own modelled round. rounds: those that count, such as 2-6. out: a folder
    for check.html, check.png and check.json, or the file of a figure.
    """
    plans, folders = ([places] if isinstance(places, str | Path) else list(places) for places in (plan, runs))
    result = PlanCheckResult(**vars(check_plans(plans, folders, RoundSpan.parse(rounds))))
    if out is not None:
        write_check(result, Path(out))
    return result
