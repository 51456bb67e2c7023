"""`hsfl compare`: several frameworks on the same fleets, data and budget; tables, figures and a page."""

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
    "compare",
    epilog="Examples:\n\n"
    "- `hsfl compare demo --set train.rounds=5 --set model.name=cnn --set fleet.cuts=fastest --out runs/five`\n"
    "- `hsfl compare paper-cifar10 -f hsfl,fleet.cuts=fastest -f splitfed_v1 -f fl --seeds 3 --target 0.5`\n"
    "- `hsfl compare demo -f hsfl -f 'Mine=hsfl,train.proximal_mu=0.01' -f 'V1=splitfed_v1,allocation.policy=own'` gives "
    "names of your own to tables, curves and folders\n"
    "- `hsfl compare demo -f fl -f fl,options.fl.needs_storage=true --set model.name=cnn --set fleet.cuts=max_cut` shows FL "
    "with and without the clients that cannot hold the model",
)
def compare_command(
    config: Annotated[str | None, typer.Argument(help="A preset's name, or a .toml or .json file.")] = None,
    frameworks: Annotated[
        list[str] | None,
        typer.Option(
            "--framework",
            "-f",
            metavar="[NAME=]FRAMEWORK[,SECTION.FIELD=VALUE...]",
            help="A framework to compare, with settings and a name of its own where wanted; may be given many times. By default the five "
            "that the paper compares: HSFL, SplitFed V1, FL, SL, CL.",
        ),
    ] = None,
    changes: Changes = None,
    plugin: Plugins = None,
    out: Annotated[
        Path, typer.Option(help="The folder of the comparison; runs in it that have ended are not run again.")
    ] = Path("runs/compare"),
    seeds: Annotated[
        int, typer.Option(min=1, help="Repeat every run with so many seeds, which gives confidence intervals.")
    ] = 1,
    jobs: Jobs = 1,
    target: Annotated[
        float | None,
        typer.Option(
            help="Also say how long each framework takes to this test accuracy, a fraction, or to this value of the task's metric."
        ),
    ] = None,
    train_once: Annotated[
        bool,
        typer.Option(
            "--train-once",
            help="Of the frameworks that learn the same in a round (HSFL, SplitFed V1, FSL, FL, with nobody dropped), "
            "train one and only time the others.",
        ),
    ] = False,
    data_dir: DataDir = None,
    latex: Latex = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Compare frameworks on one fleet, one channel and one budget of simulated seconds.

    Without train.budget_s the budget is what the first framework needs for train.rounds rounds with the first seed.
    Every framework stops at the budget or after train.rounds, whichever comes first. A framework that made all its rounds keeps
    its last model to the end of the budget, and a note says so.
    """
    console = err_console if as_json else out_console
    with one_line_errors():
        from hsfl.config import read_config
        from hsfl.framework_table import COMPARED
        from hsfl.report.comparison_summary import check_target, gain_sentences, read_comparison
        from hsfl.runs.checks.unused_settings import refuse_unused_by_contenders
        from hsfl.runs.client_data import expected_task
        from hsfl.runs.studies.contenders import contender, labels_of

        contenders = frameworks or list(COMPARED)
        all_changes = [*(changes or []), *([f"data.dir={quoted(str(data_dir))}"] if data_dir else [])]
        base = read_config(config, all_changes, plugin or ())
        check_target(target, expected_task(base).metric)
        labels = labels_of(contenders)
        refuse_unused_by_contenders(config, all_changes, [base], contenders)
        # The rest is imported here, because torch takes seconds to load, and a typo should not wait for it.
        from hsfl.report.figure_style import matplotlib
        from hsfl.report.plots import write_figures
        from hsfl.runs.studies.compare_runs import run_contenders
        from hsfl.runs.studies.run_many import ConsoleShow, ManyRuns

        matplotlib()  # before hours of training, not after
        if not quiet:
            say_compiling(console, [contender(base, text).allocation.policy for text in contenders])
        try:
            run_contenders(base, contenders, out, ManyRuns(seeds, jobs, ConsoleShow(console, quiet)), train_once)
        except KeyboardInterrupt:
            say_stopped(out, console)
            raise typer.Exit(130) from None
        comparison = read_comparison(out, target, labels)
        written = comparison.write(out, latex) + write_figures(comparison, out)
    page = write_page_beside(out)
    sentences = gain_sentences(comparison)
    if as_json:
        files = [*written, *([page] if page is not None else [])]
        print_json(comparison.to_json() | {"gained": sentences} | {"files": [str(path) for path in files]})
        return
    out_console.print(comparison.to_rich())
    for sentence in sentences:
        out_console.print(sentence, soft_wrap=True)
    out_console.print(f"tables and figures are in {out}", soft_wrap=True)
    say_page(page)
