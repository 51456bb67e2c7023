"""The `hsfl` command."""

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

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

# People's words (paths, class names) are printed as they are: no markup, no emoji codes.
out_console, err_console = (Console(stderr=is_error, markup=False, emoji=False) for is_error in (False, True))

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
        _say_error(str(error))
        raise typer.Exit(2) from None
    except MemoryError as error:
        _say_error(f"not enough memory ({error}); lower data.limit, data.image_size or train.batch_size")
        raise typer.Exit(2) from None
    except OSError as error:
        _say_error(f"{error}; check the place and try again")
        raise typer.Exit(2) from None


def _say_error(text: str) -> None:
    line = Text.assemble(("error:", "red"), " ", " ".join(text.split()))
    err_console.print(line, soft_wrap=True, highlight=False)


def print_json(value: Any) -> None:
    """JSON has no NaN: a loss that is not a number is null."""
    print(json.dumps(_finite(value), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
        words += [f"framework={_quoted(framework)}"] if framework is not None else []
        words += [f"data.dir={_quoted(str(data_dir))}"] if data_dir is not None else []
        if resume and out is None:
            raise InputError("--resume needs --out, the folder of the run to go on with")
        if resume and out is not None and not (out / "config.json").is_file():
            raise InputError(f"{out} holds no run to go on with; leave out --resume to begin one there")
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
    if summary.status not in ("finished", "budget"):
        raise typer.Exit(130 if summary.status == "interrupted" else 1)


def _quoted(text: str) -> str:
    """A TOML string."""
    return json.dumps(text, ensure_ascii=False)


def _say_end(summary: Any, folder: Path) -> None:
    if summary.best_accuracy is not None:
        line = f"best test accuracy {summary.best_accuracy:.2%} in round {summary.best_round} of {summary.rounds}"
        out_console.print(line, highlight=False)
    advice = {
        "interrupted": f"stopped after round {summary.rounds}; go on with: hsfl run --resume --out {folder}",
        "diverged": f"the loss is not a number in round {summary.rounds + 1}; try a smaller train.lr",
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
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write a run's model as a file for other programs."""
    with one_line_errors():
        from hsfl.export import export_folder

        path = export_folder(folder, format, to, which, data_dir)
    print_json({"path": str(path)}) if as_json else out_console.print(f"wrote {path}", soft_wrap=True, highlight=False)


DATA_SETS = {  # what it is, and a file of it within the data directory
    "digits": ("1,797 handwritten digits, 1x32x32, from scikit-learn", ()),
    "mnist": ("70,000 handwritten digits, 1x28x28", ("MNIST/raw/train-images*", "raw/train-images*", "train-images*")),
    "cifar10": ("60,000 photographs of ten things, 3x32x32", ("cifar-10-batches-py/data_batch_1", "data_batch_1")),
    "ham10000": ("10,015 skin lesions of seven kinds, 3x64x64", ("[hH][aA][mM]10000/*10000_*", "*10000_*")),
    "idx:PATH": ("any set in MNIST's format, wherever it lies", None),
    "folder:PATH": ("any folder of class-named folders of images", None),
}


def _is_here(name: str, marks: tuple[str, ...] | None, where: Path) -> bool | None:
    if name == "digits":
        return find_spec("sklearn") is not None
    return None if marks is None else any(True for mark in marks for _ in where.glob(mark))


@app.command(
    epilog="Examples:\n\n- `hsfl cost resnet18 --input 3,32,32`\n"
    "- `hsfl cost mobilenet_v2 --input 3,224,224 --classes 1000 --save mobilenet.json`"
)
def cost(
    model: Annotated[str, typer.Argument(help="A model's name.")] = "resnet18",
    input: Annotated[str, typer.Option(help="Channels, height and width of an image.")] = "3,32,32",
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Mini-batch that the memory is for.")] = 256,
    norm: Annotated[str, typer.Option(help="batch, group or none")] = "batch",
    stem: Annotated[str, typer.Option(help="imagenet or cifar")] = "imagenet",
    save: Annotated[Path | None, typer.Option(help="Write the table as JSON, for hsfl plan.")] = None,
    as_json: Json = False,
) -> None:
    """What every cut of a model costs: FLOPs, bits on the links, memory."""
    with one_line_errors():
        from hsfl.models.cost import measure
        from hsfl.models.zoo import build

        if batch_size < 1:
            raise InputError(f"--batch-size is {batch_size}; it must be at least 1")
        shape = _shape(input)
        split_model = build(model, shape, classes, norm, stem)
        table = measure(split_model, shape, batch_size)
        if save is not None:
            table.save(save)
    if as_json:
        print_json(table.to_dict())
        return
    columns = ("cut", "client ends with", "client GFLOPs", "server GFLOPs", "smashed", "model", "training memory")
    title = f"{model} at {input}: per sample, forward and backward; memory for a batch of {batch_size}"
    rows = Table(*columns, title=title, title_justify="left")
    for cut in range(table.num_units + 1):
        rows.add_row(
            str(cut),
            split_model.unit_names[cut - 1] if cut else "-",
            f"{table.client_flops[cut] / 1e9:.4f}",
            f"{table.server_flops[cut] / 1e9:.4f}",
            _size(table.smashed_bits[cut]),
            _size(table.model_bits[cut]),
            _size(table.memory_bits[cut]) if table.memory_bits is not None else "-",
        )
    out_console.print(rows)


def _shape(text: str) -> tuple[int, int, int]:
    try:
        channels, height, width = (int(word) for word in text.replace("x", ",").split(","))
    except ValueError:
        raise InputError(f"--input is {text!r}; give channels, height and width, such as 3,32,32") from None
    return channels, height, width


def _size(bits: float) -> str:
    num_bytes = bits / 8
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} GiB"


@data_app.command("list", epilog="Example: `hsfl data list --data-dir DIR`")
def data_list(data_dir: DataDir = None, as_json: Json = False) -> None:
    """The data sets that HSFL reads, and which of them are here."""
    with one_line_errors():
        from hsfl.data.datasets import find_data_dir

        where = find_data_dir(data_dir)
        here = {name: _is_here(name, marks, where) for name, (_, marks) in DATA_SETS.items()}
    if as_json:
        rows = [{"name": name, "here": here[name], "what": what} for name, (what, _) in DATA_SETS.items()]
        print_json({"dir": str(where), "data": rows})
        return
    table = Table("name", "here", "what", title=f"in {where}", title_justify="left")
    for name, (what, _) in DATA_SETS.items():
        table.add_row(name, {True: "yes", False: "no", None: "-"}[here[name]], what)
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
