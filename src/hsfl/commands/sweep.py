"""`hsfl sweep`: runs for every value of one or more settings; tables, figures and a page."""

from pathlib import Path
from typing import Annotated

import typer

from hsfl.commands.console import (
    Changes,
    DataDir,
    Jobs,
    Json,
    Latex,
    Plugins,
    err_console,
    one_line_errors,
    out_console,
    print_json,
    quoted,
    say_compiling,
)
from hsfl.commands.report import say_page, say_stopped, write_page_beside

commands = typer.Typer()


@commands.command(
    "sweep",
    epilog="Examples:\n\n"
    "- `hsfl sweep demo network.subchannel_hz=0.5e6,1e6,2e6 -f hsfl -f fl --seeds 3`\n"
    "- `hsfl sweep paper-cifar10 fleet.heterogeneity=0,0.5,1 fleet.num_clients=5,10 --plan-only` times a grid and trains "
    "nothing\n"
    "- `hsfl sweep my.toml train.lr=0.001,0.01,0.1 --jobs 2 --metric best_accuracy --metric train_loss`",
)
def sweep_command(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[CONFIG] FIELD=VALUE,VALUE...",
            help="A preset's name, or a .toml or .json file; then each field with its values. Several fields make a grid.",
        ),
    ],
    frameworks: Annotated[
        list[str] | None,
        typer.Option(
            "--framework",
            "-f",
            metavar="[NAME=]FRAMEWORK[,SECTION.FIELD=VALUE...]",
            help="A framework to run, as for hsfl compare; may be given many times. By default the config's framework.",
        ),
    ] = None,
    changes: Changes = None,
    plugin: Plugins = None,
    out: Annotated[
        Path, typer.Option(help="The folder of the sweep; runs in it that have ended are not run again.")
    ] = Path("runs/sweep"),
    seeds: Annotated[
        int, typer.Option(min=1, help="Repeat every run with so many seeds, which gives confidence intervals.")
    ] = 1,
    jobs: Jobs = 1,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Choose cuts, allocate and time every round; train nothing.")
    ] = False,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="A number of each run to draw against the first field, such as best_accuracy; may be given many times."
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Also say how long each run takes to this test accuracy, a fraction, or to this value of the task's metric."
        ),
    ] = None,
    data_dir: DataDir = None,
    latex: Latex = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Make runs for every value of one or more settings, and write tables, figures with intervals, and a page.

    Each run makes train.rounds rounds, or as many as fit train.budget_s where that is set. After an
    interruption the same command goes on where it stopped.
    """
    console = err_console if as_json else out_console
    with one_line_errors():
        from hsfl.config import read_config
        from hsfl.framework_table import method
        from hsfl.report.comparison_summary import check_target
        from hsfl.report.figure_style import matplotlib
        from hsfl.report.sweep_figure import write_sweep_figures
        from hsfl.report.sweep_results import check_metrics, default_metrics, read_sweep
        from hsfl.runs.checks.unused_settings import refuse_unused_by_contenders
        from hsfl.runs.client_data import expected_task
        from hsfl.runs.studies.contenders import contender
        from hsfl.runs.studies.grid import check_contenders, read_grid

        source, fields = (arguments[0], arguments[1:]) if _is_config(arguments[0]) else (None, arguments)
        all_changes = [*(changes or []), *([f"data.dir={quoted(str(data_dir))}"] if data_dir else [])]
        base = read_config(source, all_changes, plugin or ())
        first_metric = expected_task(base).metric
        check_target(target, first_metric)
        metrics = metric or default_metrics(plan_only, target, first_metric)
        check_metrics(metrics, plan_only, target)
        # a framework that a folder's config.json names is not looked up among installed plugins
        contenders = frameworks or [method(base.framework).name]
        grid = read_grid(base, fields)
        check_contenders(grid, contenders)
        point_configs, varied = [point.config for point in grid.points], [f"{field}=" for field in grid.fields]
        refuse_unused_by_contenders(source, all_changes, point_configs, contenders, plan_only)
        refuse_unused_by_contenders(None, varied, point_configs, contenders, plan_only)
        matplotlib()
        # here, because torch takes seconds to load, and a typo should not wait for it
        from hsfl.runs.studies.run_many import ConsoleShow, ManyRuns
        from hsfl.runs.studies.sweep_runs import run_sweep as make_sweep

        if not quiet:
            say_compiling(
                console, [contender(point, text).allocation.policy for point in point_configs for text in contenders]
            )
        try:
            many = ManyRuns(seeds, jobs, ConsoleShow(console, quiet))
            make_sweep(base, grid, contenders, out, many, plan_only, target)
        except KeyboardInterrupt:
            say_stopped(out, console)
            raise typer.Exit(130) from None
        sweep = read_sweep(out)
        drawn_metrics = [
            name for name in metrics if name in sweep.metrics
        ]  # a target that no run reached has no figure
        written = sweep.write(out, drawn_metrics, latex) + write_sweep_figures(sweep, drawn_metrics, out)
    for folder in sweep.folders if not plan_only else []:
        write_page_beside(out / folder)
    page = write_page_beside(out)
    if as_json:
        files = [*written, *([page] if page is not None else [])]
        print_json(sweep.to_json() | {"files": [str(path) for path in files]})
        return
    out_console.print(sweep.to_rich(drawn_metrics))
    out_console.print(f"tables and figures are in {out}", soft_wrap=True)
    say_page(page)


def _is_config(text: str) -> bool:
    return "=" not in text or Path(text).is_file()
