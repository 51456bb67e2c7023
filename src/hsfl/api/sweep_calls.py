"""`hsfl.sweep`: runs for every value of one or more settings; tables, and figures and pages where they are wanted."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hsfl.api.arguments import (
    Config,
    Frameworks,
    Plugins,
    Settings,
    arguments_of_call,
    contender_texts,
    value_text,
)
from hsfl.api.run_calls import many_runs, page_or_warning, passing_signals_on
from hsfl.api.run_results import SweepResult
from hsfl.errors import InputError, shown_value
from hsfl.framework_table import method
from hsfl.report.comparison_summary import check_target
from hsfl.report.figure_style import matplotlib
from hsfl.report.sweep_figure import write_sweep_figures
from hsfl.report.sweep_results import check_metrics, default_metrics, read_sweep
from hsfl.runs.checks.unused_settings import refuse_unused_by_contenders
from hsfl.runs.client_data import expected_task
from hsfl.runs.studies.grid import check_contenders, read_grid
from hsfl.runs.studies.sweep_runs import run_sweep


def sweep(
    config: Config = None,
    fields: Mapping[str, Any] | str | Iterable[str] = (),
    frameworks: Frameworks = (),
    out: str | Path = "runs/sweep",
    settings: Settings = (),
    *,
    seeds: int = 1,
    jobs: int = 1,
    plan_only: bool = False,
    metrics: str | Iterable[str] = (),
    target: float | None = None,
    data: Any = None,
    model: Any = None,
    progress: bool = False,
    report: bool = True,
    figures: bool = False,
    plugins: Plugins = (),
    **sections: Any,
) -> SweepResult:
    """Make a run for every value of one or more settings, and sum them up.

    fields: the values of each setting, `{"train.lr": [0.001, 0.01]}`; one value needs no list, and several settings make a grid. Or as the command has them,
        `["train.lr=0.001,0.01"]`.
    out: the folder of the sweep; runs in it that have ended are not run again.
    frameworks, seeds, jobs, target, progress: as in `hsfl.compare`; without frameworks, the config's.
    plan_only: choose cuts, allocate and time every round; train nothing.
    metrics: numbers of each run that the tables and figures show, such as "best_accuracy".
    config, settings, sections, data, model, plugins: as in `hsfl.run`. report, figures: write pages; draw figures by matplotlib.
    The answer has `table()` (a row for each point, framework and seed), `plot()` and `means_table()`.
    """
    if seeds < 1 or jobs < 1:
        raise InputError(f"seeds are {seeds} and jobs {jobs}; give one of each at least")
    if figures:
        matplotlib()  # before hours of training, not after
    arguments = arguments_of_call(config, settings, data, model, plugins, sections)
    base, changes, folder = arguments.config, arguments.changes, Path(out)
    labels = contender_texts(frameworks) or [method(base.framework).name]
    first_metric = expected_task(base, arguments.data).metric
    check_target(target, first_metric)
    shown = [metrics] if isinstance(metrics, str) else list(metrics)
    shown = shown or default_metrics(plan_only, target, first_metric)
    check_metrics(shown, plan_only, target)
    grid = read_grid(base, _words(fields))
    check_contenders(grid, labels)
    points, varied = [point.config for point in grid.points], [f"{field}=" for field in grid.fields]
    refuse_unused_by_contenders(arguments.source, changes, points, labels, plan_only)
    refuse_unused_by_contenders(None, varied, points, labels, plan_only)
    with passing_signals_on():
        run_sweep(base, grid, labels, folder, many_runs(arguments, seeds, jobs, progress), plan_only, target)
    sweep = read_sweep(folder)
    drawn = [name for name in shown if name in sweep.metrics]  # a target that no run reached has no figure
    sweep.write(folder, drawn)
    if figures:
        write_sweep_figures(sweep, drawn, folder)
    if report:
        for place in ([] if plan_only else sweep.folders) + [""]:
            page_or_warning(folder / place)
    return SweepResult(**vars(sweep), folder=folder)


def _words(fields: Mapping[str, Any] | str | Iterable[str]) -> list[str]:
    """Each field with its values, as `read_grid` takes them."""
    if isinstance(fields, Mapping):
        return [
            f"{name}={','.join(value_text(name, value) for value in _values(values))}"
            for name, values in fields.items()
        ]
    words = [fields] if isinstance(fields, str) else list(fields) if isinstance(fields, Iterable) else [fields]
    for word in words:
        if not isinstance(word, str):
            raise InputError(
                f"fields are {shown_value(fields)}; give the values of each setting, {{'train.lr': [0.001, 0.01]}}"
            )
    return words


def _values(values: Any) -> list[Any]:
    """The values of a setting; a text or a number is one value."""
    is_one = isinstance(values, str | Mapping) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0
    return [values] if is_one else list(values)
