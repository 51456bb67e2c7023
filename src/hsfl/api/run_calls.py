"""`hsfl.run` trains and writes a run folder; `hsfl.compare` does so for several frameworks and sums them up; `hsfl.evaluate` tests the
model of a run once more."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hsfl.api.arguments import (
    CallArguments,
    Config,
    Frameworks,
    Plugins,
    Settings,
    arguments_of_call,
    contender_texts,
    given_dataset,
    split_given,
)
from hsfl.api.run_results import ComparisonResult, EvaluationResult, Result
from hsfl.config import RunConfig
from hsfl.data.registry import Dataset
from hsfl.errors import InputError, shown_value
from hsfl.framework_table import COMPARED
from hsfl.plugins import load_plugins_of
from hsfl.report.comparison_summary import check_target, read_comparison
from hsfl.report.figure_style import matplotlib
from hsfl.report.page.page import PAGE_NAME, write_page
from hsfl.report.plots import write_figures
from hsfl.runs import loop, progress
from hsfl.runs.client_data import expected_task
from hsfl.runs.export import evaluate_folder
from hsfl.runs.progress import Observer
from hsfl.runs.studies.compare_runs import run_contenders
from hsfl.runs.studies.contenders import labels_of
from hsfl.runs.studies.run_many import ConsoleShow, ManyRuns

if TYPE_CHECKING:
    from hsfl.planning.plans.fleet_plan import Plan


def run(
    config: Config = None,
    out: str | Path | None = None,
    settings: Settings = (),
    *,
    data: Any = None,
    model: Any = None,
    plan: "Plan | str | Path | None" = None,
    resume: bool | None = False,
    observer: Observer | None = None,
    progress: bool = False,
    report: bool = True,
    plugins: Plugins = (),
    **sections: Any,
) -> Result:
    """Train as the config says and write a run folder: `out`, or a new folder under runs/. Ctrl-C or SIGTERM ends the run cleanly and
    then the program, as it would without a run; `resume` goes on.

    config, settings, sections: a config and changes to it, see `hsfl.api.arguments`; `hsfl.run("demo", train={"rounds": 5})`.
    data: from `hsfl.dataset`. A name or a mapping sets the config's `data`.
    model: an `nn.Sequential`, a list of modules or what `hsfl.split` gives, with the weights that it has. A name or a mapping sets
        the config's `model`.
    plan: what `hsfl.plan` gave, or the folder where it was kept: run with its cuts and policy and, without a config, with its config.
    resume: True goes on with the run in `out`, by default with its config; None does so where there is a run, and begins otherwise.
    observer: is told what happens (`hsfl.Observer`). progress: show it on stderr. Without either, warnings are shown.
    report: write `report.html` into the folder, as the command does. plugins: Python files that register methods of your own.
    """
    run_observer = _observer(observer, progress)
    if resume:
        if out is None:
            raise InputError("--resume needs --out, the folder of the run to go on with")
        if config is None and plan is None and (Path(out) / "config.json").is_file():
            config = Path(out) / "config.json"
    arguments = arguments_of_call(config, settings, data, model, plugins, sections, plan)
    arguments.check()
    folder = new_folder(arguments.config) if out is None else Path(out)
    with passing_signals_on():
        try:
            summary = loop.train_run(arguments.config, folder, resume, run_observer, arguments.data, arguments.model)
        except loop.RunStopped:
            page_or_warning(folder, run_observer) if report else None
            raise
    return Result(**asdict(summary), folder=folder, report=page_or_warning(folder, run_observer) if report else None)


def compare(
    config: Config = None,
    frameworks: Frameworks = COMPARED,
    out: str | Path = "runs/compare",
    settings: Settings = (),
    *,
    seeds: int = 1,
    jobs: int = 1,
    target: float | None = None,
    data: Any = None,
    model: Any = None,
    progress: bool = False,
    report: bool = True,
    figures: bool = False,
    train_once: bool = False,
    plugins: Plugins = (),
    **sections: Any,
) -> ComparisonResult:
    """Compare frameworks on one fleet, channel, data set and budget of simulated seconds.

    out: the folder of the comparison; runs in it that have ended are not run again.
    config, settings, sections, data, model, report, plugins: as in `hsfl.run`.
    frameworks: names of frameworks, with settings and a name of their own where wanted: `"hsfl,fleet.cuts=fastest"`,
        `"Ours=hsfl,fleet.cuts=fastest"`, or `{"Ours": "hsfl,fleet.cuts=fastest"}`.
    seeds: how many; every framework is run with the config's seed and the seeds that follow it.
    jobs: how many runs are made side by side, each in a process of its own with one thread.
    target: a value of the task's first metric, such as an accuracy of 0.6; the answer says after how many simulated seconds each
        framework reached it.
    progress: show on stderr which run is under way. figures: draw figures by matplotlib.
    train_once: of the frameworks that learn the same in a round, train one and only time the others.
    The answer has `table()` (a row for each label, seed and round), `plot()`, `results` (means and intervals for each label) and
    `to_markdown()`. The folder gets tables (CSV, JSON, Markdown), the page and the figures.
    """
    contenders, folder = contender_texts(frameworks), Path(out)
    if not contenders or seeds < 1 or jobs < 1:
        raise InputError(
            f"frameworks are {contenders}, seeds {seeds} and jobs {jobs}; give one framework, one seed and one job at least"
        )
    if figures:
        matplotlib()  # before hours of training, not after
    arguments = arguments_of_call(config, settings, data, model, plugins, sections)
    arguments.check_contenders(contenders)
    check_target(target, expected_task(arguments.config, arguments.data).metric)
    with passing_signals_on():
        run_contenders(arguments.config, contenders, folder, many_runs(arguments, seeds, jobs, progress), train_once)
    comparison = read_comparison(folder, target, labels_of(contenders))
    comparison.write(folder)
    if figures:
        write_figures(comparison, folder)
    if report:
        page_or_warning(folder)
    return ComparisonResult(**vars(comparison), folder=folder)


def evaluate(
    folder: str | Path,
    which: str = "last",
    *,
    data_dir: str | Path | None = None,
    data: Dataset | None = None,
    model: Any = None,
    plugins: Plugins = (),
) -> EvaluationResult:
    """Test the model of a run on its test samples.

    folder: of the run. which: the model of the "last" or the "best" round. data_dir: the folder of the data sets.
    data, model: of a run that was given its data or its model from Python. plugins: the files that the run used.
    """
    load_plugins_of([plugins] if isinstance(plugins, str | Path) else plugins)
    place = None if data_dir is None else Path(data_dir)
    given = None if data is None else given_dataset(data)
    quality, classes = evaluate_folder(Path(folder), which, place, given, None if model is None else split_given(model))
    return EvaluationResult(**vars(quality), classes=tuple(classes), which=which, folder=Path(folder))


@contextmanager
def passing_signals_on() -> Iterator[None]:
    """Once a signal has stopped a run and the run is saved, send the signal to the program, which has its own handlers back: SIGTERM ends
    it, Ctrl-C is a KeyboardInterrupt."""
    try:
        yield
    except loop.RunStopped as stop:
        if stop.number != signal.SIGINT:
            signal.raise_signal(stop.number)
        raise


def new_folder(config: RunConfig) -> Path:
    """A new folder under runs/, called by the time, the framework and the data."""
    data = Path(config.data.name).name.replace(":", "-")
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{config.framework}-{data}"


def many_runs(arguments: CallArguments, seeds: int, jobs: int, progress: bool) -> ManyRuns:
    """How the runs that a call asks for are made. progress: show it on stderr."""
    show = ConsoleShow(stderr_console(), quiet=not progress)
    return ManyRuns(seeds, jobs, show, arguments.data, arguments.model)


def stderr_console() -> Console:
    return Console(stderr=True, markup=False, emoji=False, highlight=False)


def _observer(observer: Observer | None, show_progress: bool) -> Observer:
    if observer is not None and not isinstance(observer, Observer):
        made = f"{observer.__name__}()" if isinstance(observer, type) and issubclass(observer, Observer) else None
        way_out = f"give an object of it, {made}" if made else "derive its class from hsfl.Observer"
        raise InputError(f"observer is {shown_value(observer)}; {way_out}")
    if observer is not None and show_progress:
        raise InputError("progress=True shows what your observer is told; leave one of them out")
    return observer or progress.observer(stderr_console(), not show_progress)


def page_or_warning(folder: Path, observer: Observer | None = None) -> Path | None:
    """Write the page of a folder. A page that cannot be written is a warning, never the end of a long run."""
    try:
        return write_page([folder], folder / PAGE_NAME)
    except Exception as error:
        (observer or _observer(None, False)).warns(
            f"no {PAGE_NAME}: {' '.join(str(error).split()) or type(error).__name__}"
        )
        return None
