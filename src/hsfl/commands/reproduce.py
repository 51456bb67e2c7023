"""`hsfl reproduce`: the paper's table and figures."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hsfl.commands.console import (
    DataDir,
    Jobs,
    Json,
    Latex,
    Plugins,
    err_console,
    load_plugins,
    need_plan_extra,
    one_line_errors,
    out_console,
    print_json,
)

if TYPE_CHECKING:
    from rich.console import Console

    from hsfl.experiments.common import Outcome, Say
    from hsfl.experiments.study_request import StudyRequest

commands = typer.Typer()

WHAT = ("fig1", "table1", "gains", "when", "fig3", "fig4", "fig5")
BESIDE = (
    "rates",
    "norms",
    "robust",
    "codecs",
    "codec-points",
    "leaderboard",
)  # not in the paper, and not part of `all`


@commands.command(
    "reproduce",
    epilog="Examples:\n\n"
    "- `hsfl reproduce fig4` takes some minutes and needs no data\n"
    "- `hsfl reproduce all --scale smoke --data-dir DATA` shows in a minute or two that everything runs\n"
    "- `hsfl reproduce table1 --seeds 3` tabulates the trainings in docs/results again, in about a minute\n"
    "- `hsfl reproduce table1 --results none --data-dir DATA --out results` trains everything itself\n"
    "- `hsfl reproduce table1 --columns all --datasets mnist --data-dir DATA`\n"
    "- `hsfl reproduce gains` shows what own cuts and the allocation gain on 30 fleets, without training\n"
    "- `hsfl reproduce when` maps where own cuts are worth it; `--scale full` in the same --out goes on to 30 fleets a place\n"
    "- `hsfl reproduce norms --scale full --jobs 2 --data-dir DATA` tests what averaging costs BatchNorm; some core hours, 8 GB of models\n"
    "- `hsfl reproduce robust --jobs 2` compares averages under attack, in some minutes and without data\n"
    "- `hsfl reproduce codecs` shows by how much codecs shorten rounds on 30 fleets, without training\n"
    "- `hsfl reproduce codec-points --data-dir DATA` trains with them, in many core hours\n"
    "- `hsfl reproduce leaderboard` times all frameworks that are trained, in some minutes",
)
def reproduce_command(
    what: Annotated[
        str,
        typer.Argument(
            help="fig1, table1, gains, when, fig3, fig4, fig5, or all of them; or rates, the search for table1's learning rates; "
            "or norms, what averaging BatchNorm's statistics costs; or robust, rules of averaging under attack; or codecs, what smaller messages save "
            "of a round, and codec-points, what they cost in accuracy; or leaderboard, seconds to fixed accuracies of every framework that is trained."
        ),
    ],
    scale: Annotated[
        str,
        typer.Option(help="smoke (a minute or two), quick (2 cores, about an hour) or full (the paper's size)."),
    ] = "quick",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the results; what is in it is not computed again. By default runs/reproduce-SCALE."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Repeat every training with so many seeds; figures 4 and 5 and `when` take at least so many fleets.",
        ),
    ] = None,
    columns: Annotated[
        str,
        typer.Option(
            help="The columns of table1 and fig3: seven, all, or names joined by commas. A framework's name may be followed by "
            "settings of its own, NAME,SECTION.FIELD=VALUE, as in hsfl compare -f."
        ),
    ] = "seven",
    datasets: Annotated[
        str, typer.Option(help="The data sets of table1 and gains, joined by commas; norms takes cifar10 or the first.")
    ] = "ham10000,cifar10,mnist",
    results: Annotated[
        str | None,
        typer.Option(
            help="A folder of earlier trainings, which are not repeated; `none` trains everything. By default docs/results, in a checkout."
        ),
    ] = None,
    jobs: Jobs = 1,
    plugin: Plugins = None,
    data_dir: DataDir = None,
    latex: Latex = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Make the paper's table and figures again: CSV files, figures, and a Markdown page that shows the paper's numbers beside ours.

    After an interruption the same command goes on where it stopped.
    """
    console = err_console if as_json else out_console
    with one_line_errors():
        need_plan_extra()
        from hsfl.errors import known_name
        from hsfl.experiments.common import SCALES
        from hsfl.experiments.study_request import StudyRequest
        from hsfl.experiments.table1.columns import columns_named
        from hsfl.report.figure_style import matplotlib
        from hsfl.report.tables import write_summary_tables
        from hsfl.runs.progress import observer
        from hsfl.runs.studies.run_many import ConsoleShow

        chosen = WHAT if known_name("what", what, (*WHAT, *BESIDE, "all")) == "all" else (what,)
        known_name("--scale", scale, SCALES)
        load_plugins(plugin)
        matplotlib()  # before hours of work, not after
        folder = out or Path("runs") / f"reproduce-{scale}"
        request = StudyRequest(
            folder,
            scale,
            seeds,
            lambda text: None,
            columns_named(columns),
            _dataset_names(datasets),
            data_dir,
            _results_folder(results),
            partial(observer, console, quiet),
            jobs,
            ConsoleShow(console, quiet),
        )
        outcomes = []
        try:
            for name in chosen:
                outcome = _reproduce(name, replace(request, out=folder / name, say=_teller(name, console, quiet)))
                tables = write_summary_tables([*outcome.tables, outcome.claims], outcome.markdown.parent, latex)
                outcomes.append(replace(outcome, files=[*outcome.files, *tables]))
        except KeyboardInterrupt:
            console.print(f"stopped; the same command goes on where it was, in {folder}", soft_wrap=True)
            raise typer.Exit(130) from None
    if as_json:
        print_json({outcome.name: _outcome_json(outcome) for outcome in outcomes})
        return
    for outcome in outcomes:
        _show_outcome(outcome)


def _teller(name: str, console: "Console", quiet: bool) -> "Say":
    """What tells people how far the experiment of this name is."""

    def say(text: str) -> None:
        if not quiet:
            console.print(f"{name}: {text}", soft_wrap=True)

    return say


def _reproduce(name: str, request: "StudyRequest") -> "Outcome":
    from hsfl.experiments.codec_points import reproduce_codec_points
    from hsfl.experiments.codec_rounds import reproduce_codecs
    from hsfl.experiments.fig1 import reproduce_fig1
    from hsfl.experiments.fig3 import reproduce_fig3
    from hsfl.experiments.gains import reproduce_gains
    from hsfl.experiments.latency.fig4 import reproduce_fig4
    from hsfl.experiments.latency.fig5 import reproduce_fig5
    from hsfl.experiments.leaderboard import reproduce_leaderboard
    from hsfl.experiments.learning_rates import reproduce_rates
    from hsfl.experiments.norms import DATA, reproduce_norms
    from hsfl.experiments.robust import reproduce_robust
    from hsfl.experiments.table1.columns import TAU_DATA
    from hsfl.experiments.table1.table1 import reproduce_table1
    from hsfl.experiments.when import reproduce_when

    figures = {"fig1": reproduce_fig1, "fig4": reproduce_fig4, "fig5": reproduce_fig5}
    if name in figures:
        return figures[name](request.out, request.scale, request.num_seeds, request.say)
    if name == "when":
        return reproduce_when(request.out, request.scale, request.num_seeds, request.say, request.jobs)
    if (
        usual := {"fig3": TAU_DATA, "norms": DATA}.get(name)
    ) is not None:  # takes one data set: the usual one where it may
        request = replace(request, datasets=(usual if usual in request.datasets else request.datasets[0],))
    studies = {"table1": reproduce_table1, "gains": reproduce_gains, "rates": reproduce_rates}
    studies |= {"fig3": reproduce_fig3, "norms": reproduce_norms, "robust": reproduce_robust}
    studies |= {
        "codecs": reproduce_codecs,
        "codec-points": reproduce_codec_points,
        "leaderboard": reproduce_leaderboard,
    }
    return studies[name](request)


def _dataset_names(text: str) -> tuple[str, ...]:
    from hsfl.data.registry import FACTS
    from hsfl.errors import InputError, known_name

    names = tuple(
        dict.fromkeys(known_name("--datasets", name.strip(), FACTS) for name in text.split(",") if name.strip())
    )
    if not names:
        raise InputError(f"--datasets is {text!r}; name at least one, such as mnist")
    return names


def _results_folder(text: str | None) -> Path | None:
    """The folder of earlier trainings: the folder given, else docs/results in a checkout; None where the word is `none`."""
    from hsfl.errors import InputError

    if text is None:
        shipped = Path("docs") / "results"
        return shipped if shipped.is_dir() else None
    if text == "none":
        return None
    if not Path(text).is_dir():
        raise InputError(f"--results is {text!r}, which is no folder; name one with traces, or none")
    return Path(text)


def _outcome_json(outcome: "Outcome") -> dict[str, Any]:
    trends = [asdict(trend) for trend in outcome.trends]
    return {"markdown": str(outcome.markdown), "files": [str(path) for path in outcome.files], "trends": trends}


def _show_outcome(outcome: "Outcome") -> None:
    table = Table(*outcome.claims.header, title=outcome.name, title_justify="left")
    for row in outcome.claims.rows:
        table.add_row(*row)
    out_console.print(table)
    out_console.print(f"tables and figures are in {outcome.markdown.parent}", soft_wrap=True)
