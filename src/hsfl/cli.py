"""The `hsfl` command."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hsfl.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Unequal devices train one neural network together without sharing their data.",
)
data_app = typer.Typer(no_args_is_help=True, help="Look at data sets and download them.")
app.add_typer(data_app, name="data")

out_console, err_console = Console(), Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, for programs.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where the data sets are; else HSFL_DATA.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Change a setting; may be given many times."),
]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Wrong input ends a command with one line and exit code 2, without a traceback."""
    try:
        yield
    except InputError as error:
        err_console.print(f"[red]error:[/red] {_plain(str(error))}", soft_wrap=True, highlight=False)
        raise typer.Exit(2) from None


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("[", "\\[")


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))


@app.command(
    epilog="Examples:\n\n"
    "- `hsfl run demo` trains ten clients with different cuts on scikit-learn's digits\n"
    "- `hsfl run paper-cifar10 --framework fl --out runs/fl --data-dir DIR`\n"
    "- `hsfl run my.toml --set train.rounds=20 --set fleet.cuts=[3,3,5,10]`\n"
    "- `hsfl run --resume --out runs/fl` goes on where that run stopped"
)
def run(
    config: Annotated[str | None, typer.Argument(help="A preset's name, or a .toml or .json file.")] = None,
    changes: Changes = None,
    framework: Annotated[str | None, typer.Option(help="Short for --set framework=NAME.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; by default a new one under runs/.")] = None,
    data_dir: DataDir = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model as a config says."""
    with one_line_errors():
        from hsfl.config import read_config
        from hsfl.progress import observer
        from hsfl.training import simulate

        words = list(changes or [])
        words += [f"framework={json.dumps(framework)}"] if framework else []
        words += [f"data.dir={json.dumps(str(data_dir))}"] if data_dir else []
        if resume and out is None:
            raise InputError("--resume needs --out, the folder of the run to go on with")
        source = str(out / "config.json") if out and resume and config is None else config
        settings = read_config(source, words)
        folder = (
            out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{settings.framework}-{Path(settings.data.name).name}"
        )
        console = err_console if as_json else out_console
        summary = simulate.run(settings, folder, resume, observer(console, quiet))
    if as_json:
        print_json(asdict(summary) | {"folder": str(folder)})
    else:
        _say_end(summary, folder)
    if summary.status != "finished":
        raise typer.Exit(130 if summary.status == "interrupted" else 1)


def _say_end(summary: Any, folder: Path) -> None:
    if summary.best_accuracy is not None:
        line = f"best test accuracy {summary.best_accuracy:.2%} in round {summary.best_round} of {summary.rounds}"
        out_console.print(line, highlight=False)
    advice = {
        "interrupted": f"stopped after round {summary.rounds}; go on with: hsfl run --resume --out {folder}",
        "diverged": f"the loss is not a number after round {summary.rounds}; try a smaller train.lr",
    }
    out_console.print(advice.get(summary.status, f"results are in {folder}"), soft_wrap=True, highlight=False)


@app.command(epilog="Example: `hsfl evaluate runs/fl --which best --json`")
def evaluate(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    which: Annotated[str, typer.Option(help="best or last")] = "last",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Test the model of a run on its test images."""
    with one_line_errors():
        from hsfl.export import evaluate_folder

        quality, classes = evaluate_folder(folder, which, data_dir)
    if as_json:
        print_json(asdict(quality) | {"classes": list(classes), "which": which})
        return
    out_console.print(
        f"{which} model: accuracy {quality.accuracy:.2%}, balanced accuracy {quality.balanced_accuracy:.2%}, "
        f"loss {quality.loss:.4f}",
        highlight=False,
    )
    table = Table("class", "recall")
    for name, recall in zip(classes, quality.recall):
        table.add_row(name, "-" if recall is None else f"{recall:.1%}")
    out_console.print(table)


@app.command(epilog="Example: `hsfl export runs/fl --format onnx --to model.onnx`")
def export(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    format: Annotated[str, typer.Option(help="safetensors, torchscript or onnx")] = "safetensors",
    to: Annotated[Path | None, typer.Option(help="The file to write; by default in the run's folder.")] = None,
    which: Annotated[str, typer.Option(help="best or last")] = "last",
    as_json: Json = False,
) -> None:
    """Write a run's model as a file for other programs."""
    with one_line_errors():
        from hsfl.export import export_folder

        path = export_folder(folder, format, to, which)
    print_json({"path": str(path)}) if as_json else out_console.print(f"wrote {path}", soft_wrap=True, highlight=False)


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: Json = False) -> None:
    """The data sets that HSFL reads, and which of them are here."""
    with one_line_errors():
        from hsfl.data.datasets import find_data_dir, inventory

        rows = inventory(data_dir)
        where = find_data_dir(data_dir)
    if as_json:
        print_json({"dir": str(where), "data": rows})
        return
    table = Table("name", "here", "what", title=f"in {where}", title_justify="left")
    for row in rows:
        table.add_row(row["name"], "yes" if row["here"] else "no", row["what"])
    out_console.print(table)


@data_app.command("show", epilog="Example: `hsfl data show ham10000 --data-dir DIR`")
def data_show(
    name: Annotated[str, typer.Argument(help="mnist, cifar10, ham10000, digits, idx:PATH or folder:PATH")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Images and classes of a data set."""
    with one_line_errors():
        from hsfl.data.datasets import describe, load

        dataset = load(name, data_dir)
        counts = describe(dataset)
    shape = "x".join(map(str, dataset.train_x.shape[1:]))
    if as_json:
        print_json({"name": name, "shape": list(dataset.train_x.shape[1:]), "classes": [c._asdict() for c in counts]})
        return
    table = Table("class", "training", "test", title=f"{name}: {shape}", title_justify="left")
    for count in counts:
        table.add_row(*(str(value) for value in count))
    out_console.print(table)


@data_app.command("fetch", epilog="Example: `hsfl data fetch mnist --data-dir data`")
def data_fetch(
    name: Annotated[str, typer.Argument(help="mnist or cifar10")],
    data_dir: DataDir = None,
    base_url: Annotated[str | None, typer.Option(help="Take the files from here instead.")] = None,
) -> None:
    """Download a data set and check its sums."""
    with one_line_errors():
        from hsfl.data.fetch import fetch

        path = fetch(name, data_dir, base_url)
    out_console.print(f"{name} is in {path}", soft_wrap=True, highlight=False)


if __name__ == "__main__":
    sys.exit(app())
