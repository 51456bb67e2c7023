"""What runs give: the results of a run, a comparison and a sweep, and how good a model is. Each of them has `table()` for plain rows and
`to_json()` for what the command prints with `--json`, and shows itself on one screen; those with `plot()` draw themselves."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsfl.api.notebook_figure import shown_in_notebooks
from hsfl.display import OnScreen, Rows, Screen
from hsfl.errors import InputError, in_arguments, known_name
from hsfl.formats import count, seconds
from hsfl.report.compared_runs import Run, read_run
from hsfl.report.comparison import Comparison
from hsfl.report.comparison_summary import gain_sentences, summarise_runs
from hsfl.report.gantt import gantt_figure
from hsfl.report.plots import learning_figure
from hsfl.report.sweep_figure import sweep_figure
from hsfl.report.sweep_results import Sweep, default_metrics
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.run_folder.records import RoundRecord
from hsfl.runs.run_folder.round_tables import phase_table, round_table
from hsfl.runs.run_folder.write_records import Summary
from hsfl.training.evaluation import Quality

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Result(OnScreen, Summary):
    """How a run ended, and where its results are."""

    folder: Path
    report: Path | None  # the page; None where none was asked for or it could not be written

    def records(self) -> list[RoundRecord]:
        """Everything that the run wrote down about each round."""
        return RunFolder(self.folder).rounds()

    def table(self) -> Rows:
        """A plain row for each round; rounds.csv has the same."""
        return Rows(round_table(self.records()))

    def phases(self) -> Rows:
        """A plain row for each round, client and phase: when it began and ended."""
        return Rows(phase_table(self.records()))

    def plot(self, quantity: str | None = None) -> "Figure":
        """A quantity over simulated time and over rounds, such as train_loss or round_s; by default the task's first metric."""
        return shown_in_notebooks(learning_figure(summarise_runs([self._run()]), quantity))

    def gantt(self, round_number: int = 1) -> "Figure":
        """Who did what when in a round: a row for each client, a bar for each phase."""
        run = self._run()
        known_rounds = [record for record in run.records if record.crowd is None]
        for record in known_rounds:
            if record.round == round_number:
                return shown_in_notebooks(gantt_figure(record, run.name, run.pools_data, run.client_names))
        which = f"choose 1..{len(known_rounds)}" if known_rounds else "this run has no round that can be drawn"
        raise InputError(f"round_number is {round_number}; {which}")

    def to_json(self) -> dict[str, Any]:
        """As `hsfl run --json` prints it."""
        report = None if self.report is None else str(self.report)
        return asdict(self) | {"folder": str(self.folder), "report": report}

    def screen(self) -> Screen:
        """How the run ended, and its last rounds."""
        run = self._run()
        sentences = [
            f"{run.name}: {self.status} after {count(self.rounds, 'round')} and {seconds(self.sim_time_s)} of simulated time"
        ]
        if self.best is not None:
            sentences[0] += f"; best {run.metric.title} {run.metric.say(self.best)} in round {self.best_round}"
        sentences.append(f"in {self.folder}" + (f"; look at {self.report}" if self.report is not None else ""))
        names = ("round", "sim_time_s", "train_loss", "test_loss", run.metric.name, "kept", "dropped")
        rows = [[row.get(name) for name in names] for row in round_table(run.records[-LAST_ROUNDS:])]
        return Screen(sentences, names, rows)

    def _run(self) -> Run:
        return read_run(self.folder, self.framework, RunFolder(self.folder).config().seed)


LAST_ROUNDS = 5  # of a run, that are shown


@dataclass(frozen=True, repr=False)
class ComparisonResult(OnScreen, Comparison):
    """A comparison, and the folder that it lies in."""

    folder: Path

    def table(self) -> Rows:
        """A plain row for each label, seed and round; rounds.csv has the same."""
        return Rows(super().table())

    def plot(self, quantity: str | None = None) -> "Figure":
        """A quantity over simulated time and over rounds, such as train_loss or round_s; by default the task's first metric."""
        return shown_in_notebooks(learning_figure(self, quantity))

    def screen(self) -> Screen:
        """What the reference gained, and what each label reached."""
        first, second = self.tables()[:2]
        header, rows, more_header, more_rows = first.header, first.rows, second.header, second.rows
        joined = [[*row, *more[1:]] for row, more in zip(rows, more_rows)]
        return Screen([*gain_sentences(self), *self.notes, f"in {self.folder}"], [*header, *more_header[1:]], joined)


@dataclass(frozen=True, repr=False)
class SweepResult(OnScreen, Sweep):
    """A sweep, and the folder that it lies in."""

    folder: Path = Path()

    def table(self) -> Rows:
        """A plain row for each point, contender and seed, with every metric; sweep.csv has the same."""
        return Rows(self.to_json()["runs"])

    def plot(self, metric: str | None = None) -> "Figure":
        """A metric against the first field, such as round_s; by default the first that a sweep draws."""
        return shown_in_notebooks(sweep_figure(self, known_name("metric", metric or self._usual()[0], self.metrics)))

    def notes(self) -> list[str]:
        return [in_arguments(note) for note in super().notes()]

    def screen(self) -> Screen:
        """Means of the usual metrics for each point and contender."""
        table = self.means_table(self._usual())
        title, header, rows = table.title, table.header, table.rows
        return Screen([title, *self.notes(), f"in {self.folder}"], header, rows)

    def _usual(self) -> list[str]:
        """The metrics that are shown where none are asked for; round_s where no run has any of them."""
        usual = default_metrics(self.plan_only, self.target, self.metric)
        return [name for name in usual if name in self.metrics] or ["round_s"]


@dataclass(frozen=True, repr=False)
class EvaluationResult(OnScreen, Quality):
    """How good the model of a run is on the test samples."""

    classes: tuple[str, ...] = ()
    which: str = "last"  # the model of the last or of the best round
    folder: Path = Path()

    def table(self) -> Rows:
        """A plain row for each class: its recall. Empty where there are no classes."""
        return Rows({"class": name, "recall": recall} for name, recall in zip(self.classes, self.recall))

    def to_json(self) -> dict[str, Any]:
        """As `hsfl evaluate --json` prints it."""
        fields = asdict(self) | {"recall": list(self.recall), "classes": list(self.classes)}
        return {name: value for name, value in fields.items() if name != "folder"}

    def screen(self) -> Screen:
        """The metrics, and the recall of each class."""
        numbers = {
            "accuracy": self.accuracy,
            "balanced accuracy": self.balanced_accuracy,
            **self.metrics,
            "loss": self.loss,
        }
        known = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items() if value is not None)
        rows = [list(row.values()) for row in self.table()]
        return Screen([f"{self.which} model of {self.folder}: {known}"], ("class", "recall") if rows else (), rows)
