"""`hsfl.run` trains and writes a run folder; `hsfl.compare` does so for several frameworks and sums them up."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from hsfl.api.arguments import Config, arguments_of_call
from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.framework_table import COMPARED
from hsfl.report.comparison import Comparison
from hsfl.report.comparison_summary import check_target, read_comparison
from hsfl.report.figure_style import matplotlib
from hsfl.report.page.page import write_page
from hsfl.report.plots import write_figures
from hsfl.runs import loop, progress
from hsfl.runs.client_data import expected_task
from hsfl.runs.folder import RunFolder
from hsfl.runs.progress import Observer
from hsfl.runs.records import RoundRecord
from hsfl.runs.round_tables import phase_table, round_table
from hsfl.runs.studies.compare_runs import run_contenders
from hsfl.runs.studies.contenders import labels_of
from hsfl.runs.studies.run_many import ConsoleShow
from hsfl.runs.write_records import Summary

PAGE_NAME = "report.html"


@dataclass(frozen=True)
class Result(Summary):
    """How a run ended, and where its results are."""

    folder: Path
    report: Path | None  # the page; None where none was asked for or it could not be written

    def records(self) -> list[RoundRecord]:
        """Everything that the run wrote down about each round."""
        return RunFolder(self.folder).rounds()

    def table(self) -> list[dict[str, Any]]:
        """A plain row for each round, for `pandas.DataFrame` or `csv.DictWriter`."""
        return round_table(self.records())

    def phases(self) -> list[dict[str, Any]]:
        """A plain row for each round, client and phase: when it began and ended."""
        return phase_table(self.records())


def run(
    config: Config = None,
    out: str | Path | None = None,
    settings: Iterable[str] = (),
    *,
    data: Any = None,
    model: Any = None,
    resume: bool | None = False,
    observer: Observer | None = None,
    progress: bool = False,
    report: bool = True,
    plugins: Iterable[str | Path] = (),
    **sections: Any,
) -> Result:
    """Train as the config says and write a run folder: `out`, or a new folder under runs/. Ctrl-C ends the run cleanly.

    config, settings, sections: a config and changes to it, see `hsfl.api.arguments`; `hsfl.run("demo", train={"rounds": 5})`.
    data: from `hsfl.dataset`. A name or a mapping sets the config's `data`.
    model: an `nn.Sequential`, a list of modules or what `hsfl.split` gives, with the weights that it has. A name or a mapping sets
        the config's `model`.
    resume: True goes on with the run in `out`; None does so where there is a run, and begins otherwise.
    observer: is told what happens (`hsfl.Observer`). progress: show it on stderr. Without either, warnings are shown.
    report: write `report.html` into the folder, as the command does. plugins: Python files that register methods of your own.
    """
    arguments = arguments_of_call(config, settings, data, model, plugins, sections)
    arguments.check()
    folder, run_observer = new_folder(arguments.config) if out is None else Path(out), _observer(observer, progress)
    summary = loop.train_run(arguments.config, folder, resume, run_observer, arguments.data, arguments.model)
    return Result(**asdict(summary), folder=folder, report=_write_page(folder, run_observer) if report else None)


def compare(
    config: Config = None,
    frameworks: Iterable[str] = COMPARED,
    out: str | Path = "runs/compare",
    settings: Iterable[str] = (),
    *,
    seeds: int = 1,
    target: float | None = None,
    data: Any = None,
    model: Any = None,
    progress: bool = False,
    report: bool = True,
    figures: bool = False,
    train_once: bool = False,
    plugins: Iterable[str | Path] = (),
    **sections: Any,
) -> Comparison:
    """Compare frameworks on one fleet, channel, data set and budget of simulated seconds.

    out: the folder of the comparison; runs in it that have ended are not run again.
    config, settings, sections, data, model, report, plugins: as in `hsfl.run`.
    frameworks: names of frameworks, with settings and a name of their own where wanted: `"hsfl,fleet.cuts=fastest"`,
        `"Ours=hsfl,fleet.cuts=fastest"`.
    seeds: how many; every framework is run with the config's seed and the seeds that follow it.
    target: a value of the task's first metric, such as an accuracy of 0.6; the answer says after how many simulated seconds each
        framework reached it.
    progress: show on stderr which run is under way. figures: draw figures by matplotlib.
    train_once: of the frameworks that learn the same in a round, train one and only time the others.
    The answer has `table()` (a row for each label, seed and round), `results` (means and intervals for each label) and
    `to_markdown()`. The folder gets tables (CSV, JSON, Markdown), the page and the figures.
    """
    contenders, folder = [frameworks] if isinstance(frameworks, str) else list(frameworks), Path(out)
    if not contenders or seeds < 1:
        raise InputError(f"frameworks are {contenders} and seeds {seeds}; give one framework and one seed at least")
    if figures:
        matplotlib()  # before hours of training, not after
    arguments = arguments_of_call(config, settings, data, model, plugins, sections)
    arguments.check_contenders(contenders)
    check_target(target, expected_task(arguments.config, arguments.data).metric)
    run_contenders(
        arguments.config,
        contenders,
        folder,
        seeds,
        show=ConsoleShow(_console(), quiet=not progress),
        dataset=arguments.data,
        model=arguments.model,
        train_once=train_once,
    )
    comparison = read_comparison(folder, target, labels_of(contenders))
    comparison.write(folder)
    if figures:
        write_figures(comparison, folder)
    if report:
        _write_page(folder, _observer(None, False))
    return comparison


def new_folder(config: RunConfig) -> Path:
    """A new folder under runs/, called by the time, the framework and the data."""
    data = Path(config.data.name).name.replace(":", "-")
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{config.framework}-{data}"


def _console() -> Console:
    return Console(stderr=True, markup=False, emoji=False, highlight=False)


def _observer(observer: Observer | None, show_progress: bool, name: str | None = None) -> Observer:
    if observer is not None and show_progress:
        raise InputError("progress=True shows what your observer is told; leave one of them out")
    return observer or progress.observer(_console(), not show_progress, name)


def _write_page(folder: Path, observer: Observer) -> Path | None:
    """Write the page of a folder. A page that cannot be written is a warning, never the end of a long run."""
    try:
        return write_page([folder], folder / PAGE_NAME)
    except Exception as error:
        observer.warns(f"no {PAGE_NAME}: {' '.join(str(error).split()) or type(error).__name__}")
        return None
