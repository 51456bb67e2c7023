"""`hsfl run`, `hsfl evaluate`, `hsfl export` and `hsfl replay`."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hsfl.commands.console import (
    Changes,
    DataDir,
    Json,
    Plugins,
    err_console,
    load_plugins,
    one_line_errors,
    out_console,
    print_json,
    quoted,
    say_compiling,
)
from hsfl.commands.report import say_page, write_page_beside
from hsfl.errors import InputError
from hsfl.formats import percent

if TYPE_CHECKING:
    from hsfl.config import RunConfig
    from hsfl.runs.replay import ReplayReport

commands = typer.Typer()


@commands.command(
    "run",
    epilog="Examples:\n\n"
    "- `hsfl run demo` trains ten clients with different cuts on scikit-learn's digits\n"
    "- `hsfl run paper-cifar10 --framework fl --out runs/fl --data-dir DIR`\n"
    "- `hsfl run my.toml --set train.rounds=20 --set fleet.cuts=[3,3,5,10]`\n"
    "- `hsfl run --resume --out runs/fl` goes on where that run stopped\n"
    "- `hsfl run runs/fl` makes that run again, in a new folder\n"
    "- `hsfl run --plan plan/plan.json` runs what `hsfl plan my.toml --out plan` planned\n"
    "- `hsfl run my.toml --plugin my_method.py` trains with a method of your own",
)
def run_command(
    config: Annotated[
        str | None,
        typer.Argument(
            help="A preset (demo, paper-mnist, paper-cifar10, paper-ham10000, vit-cifar10, gpt-text), a .toml or .json "
            "file, or the folder of a run, which is made again. Without CONFIG and settings, hsfl run trains the demo."
        ),
    ] = None,
    changes: Changes = None,
    framework: Annotated[
        str | None,
        typer.Option(
            help="cl, fl, sl, splitfed_v1, splitfed_v2, psl, fsl, locfedmix_sl, cpsl or hsfl; short for --set framework=NAME."
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="A plan.json that hsfl plan --out wrote: run with the plan's cuts and policy. Without CONFIG, the "
            "config is the plan's, too."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; by default a new folder under runs/.")] = None,
    plugin: Plugins = None,
    data_dir: DataDir = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model as a config says, and keep the results in a run folder."""
    with one_line_errors():
        all_changes = list(changes or [])
        all_changes += [f"framework={quoted(framework)}"] if framework is not None else []
        all_changes += [f"data.dir={quoted(str(data_dir))}"] if data_dir is not None else []
        settings = _run_config(config, all_changes, plugin or [], plan, out if resume else None, resume)
        # here, because torch takes seconds to load, and a typo should not wait for it
        from hsfl.api.run_calls import new_folder
        from hsfl.runs import loop
        from hsfl.runs.progress import observer

        folder = out or new_folder(settings)
        console = err_console if as_json else out_console
        if not quiet:
            say_compiling(console, [settings.allocation.policy])
        try:
            summary = loop.train_run(settings, folder, resume, observer(console, quiet))
        except loop.RunStopped as stop:
            summary = stop.summary
    page = write_page_beside(folder)
    if as_json:
        print_json(asdict(summary) | {"folder": str(folder), "report": None if page is None else str(page)})
    else:
        _say_end(summary, folder, page)
    if summary.status not in ("finished", "budget"):
        raise typer.Exit(130 if summary.status == "interrupted" else 1)


def _run_config(
    config: str | None,
    changes: list[str],
    plugins: list[str],
    plan: Path | None,
    resumed_folder: Path | None,
    resume: bool,
) -> "RunConfig":
    """The config of a run. resumed_folder: the folder of the run to go on with."""
    from hsfl.config import read_config
    from hsfl.runs.checks.unused_settings import refuse_unused
    from hsfl.runs.from_plan import as_planned, read_plan

    if resume and resumed_folder is None:
        raise InputError("--resume needs --out, the folder of the run to go on with")
    if resumed_folder is not None and not (resumed_folder / "config.json").is_file():
        raise InputError(f"{resumed_folder} holds no run to go on with; leave out --resume to begin one there")
    if plan is not None:
        saved_plan = read_plan(plan)
        if config is None and saved_plan.config is None:
            raise InputError(f"{plan} holds no config; give CONFIG, or a plan.json that hsfl plan --out wrote")
        settings = as_planned(read_config(config or saved_plan.config, changes, plugins), saved_plan, changes)
        refuse_unused(config, changes, [settings])
        return settings
    if resumed_folder is not None and config is None:
        return read_config(resumed_folder / "config.json", changes, plugins)
    if config is None and not changes:
        err_console.print("no config is given, so this is the demo; see hsfl run --help")
        config = "demo"
    settings = read_config(config, changes, plugins)
    refuse_unused(config, changes, [settings])
    return settings


def _say_end(summary: Any, folder: Path, page: Path | None) -> None:
    from hsfl.runs.run_folder.folder import RunFolder

    if summary.best is not None:
        metric = next(metric for metric in RunFolder(folder).metrics() if metric.name == summary.metric)
        best_text = f"best {metric.title} {metric.say(summary.best)} in round {summary.best_round} of {summary.rounds}"
        out_console.print(best_text)
    say_page(page)
    advice = {
        "budget": f"train.budget_s was spent after {summary.rounds} rounds; results are in {folder}",
        "interrupted": f"stopped after round {summary.rounds}; go on with: hsfl run --resume --out {shlex.quote(str(folder))}",
        "diverged": f"the loss is not a number in round {summary.rounds + 1}; try a smaller train.lr",
    }
    out_console.print(advice.get(summary.status, f"results are in {folder}"), soft_wrap=True)


@commands.command("evaluate", epilog="Example: `hsfl evaluate runs/fl --which best --json`")
def evaluate_command(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    which: Annotated[str, typer.Option(help="The model of the best or of the last round: best or last.")] = "last",
    plugin: Plugins = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Test the model of a run on the test samples."""
    with one_line_errors():
        from hsfl.runs.export import evaluate_folder
        from hsfl.runs.run_folder.folder import RunFolder

        load_plugins(plugin)
        quality, classes = evaluate_folder(folder, which, data_dir)
        metrics = RunFolder(folder).metrics()
    if as_json:
        print_json(asdict(quality) | {"classes": list(classes), "which": which})
        return
    metric_texts = [metric.tell(quality.metrics[metric.name]) for metric in metrics if metric.name in quality.metrics]
    if quality.accuracy is not None and quality.balanced_accuracy is not None:
        metric_texts += [
            f"accuracy {percent(quality.accuracy)}",
            f"balanced accuracy {percent(quality.balanced_accuracy)}",
        ]
    out_console.print(f"{which} model: {', '.join(metric_texts)}, loss {quality.loss:.4f}")
    if not quality.recall:
        return
    table = Table("class", "recall")
    for name, recall in zip(classes, quality.recall):
        table.add_row(name, "-" if recall is None else percent(recall, 1))
    out_console.print(table)


@commands.command("export", epilog="Example: `hsfl export runs/fl --format onnx --to model.onnx`")
def export_command(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    format: Annotated[str, typer.Option(help="safetensors, torchscript or onnx.")] = "safetensors",
    to: Annotated[Path | None, typer.Option(help="The file to write; by default a file in the run's folder.")] = None,
    which: Annotated[str, typer.Option(help="The model of the best or of the last round: best or last.")] = "last",
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Write the model of a run as a file for other programs; no data set is needed."""
    with one_line_errors():
        from hsfl.runs.export import export_folder

        load_plugins(plugin)
        path = export_folder(folder, format, to, which)
    print_json({"path": str(path)}) if as_json else out_console.print(f"wrote {path}", soft_wrap=True)


@commands.command(
    "replay",
    epilog="Examples:\n\n"
    "- `hsfl replay runs/mine` makes a simulation again from its own records\n"
    "- `hsfl replay /srv/hsfl/run --json` simulates what a main server's rounds did, where the data of all clients are here",
)
def replay_command(
    folder: Annotated[Path, typer.Argument(help="The folder of a run: a simulation's, or a main server's.")],
    plugin: Plugins = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Make a run again with its recorded cuts and kept clients, and say whether losses and models agree to the bit.

    Exit code 0: all that was checked agrees. 1: something differs. 2: nothing could be checked.
    """
    with one_line_errors():
        from hsfl.runs.replay import replay_run

        load_plugins(plugin)
        report = replay_run(folder, data_dir)
    print_json(asdict(report) | {"agrees": report.agrees}) if as_json else _show_replay(report)
    if not report.agrees:
        raise typer.Exit(2 if report.agrees is None else 1)


def _show_replay(report: "ReplayReport") -> None:
    answers = {True: "the bits agree", False: "the bits differ", None: "nothing could be checked"}
    out_console.print(f"{report.folder}: {answers[report.agrees]}, {report.rounds} rounds replayed", soft_wrap=True)
    if (first := report.first_round) is not None:
        out_console.print(
            f"first difference in a record: round {first.round}, {first.quantity} was {first.recorded} and is {first.replayed}",
            soft_wrap=True,
        )
    if (tensor := report.first_tensor) is not None:
        how = "another shape or type" if tensor.largest is None else f"by up to {tensor.largest:.3g}"
        out_console.print(
            f"first difference in a model: round {tensor.round}, {tensor.tensor} of {tensor.file}, {how}",
            soft_wrap=True,
        )
    for title, sentences in (("checked", report.checked), ("not checked", report.unchecked), ("note", report.notes)):
        for sentence in sentences:
            out_console.print(f"{title}: {sentence}", soft_wrap=True)
