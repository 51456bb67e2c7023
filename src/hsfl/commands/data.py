"""`hsfl data`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from hsfl.commands.shared import DataDir, Json, Plugins, load_plugins, one_line_errors, out_console, print_json

commands = typer.Typer(no_args_is_help=True, help="Look at data sets and download them.")

DATA_SETS = {  # what the data set is, and patterns of a file that it has within the data directory
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


@commands.command("list", epilog="Example: `hsfl data list --data-dir DIR`")
def data_list(data_dir: DataDir = None, plugin: Plugins = None, as_json: Json = False) -> None:
    """List the data sets that HSFL reads, and say which of them are here."""
    with one_line_errors():
        from hsfl.data.datasets import find_data_dir
        from hsfl.plugins import REGISTERED

        load_plugins(plugin)
        where = find_data_dir(data_dir)
        own = {name: "your own" for kind, name in REGISTERED if kind == "data set"}
        here = {name: _is_here(name, marks, where) for name, (_, marks) in DATA_SETS.items()} | dict.fromkeys(own)
        words = {name: what for name, (what, _) in DATA_SETS.items()} | own
    if as_json:
        rows = [{"name": name, "here": here[name], "what": what} for name, what in words.items()]
        print_json({"dir": str(where), "data": rows})
        return
    table = Table("name", "here", "what", title=f"in {where}", title_justify="left")
    for name, what in words.items():
        table.add_row(name, {True: "yes", False: "no", None: "-"}[here[name]], what)
    out_console.print(table)


@commands.command("show", epilog="Example: `hsfl data show ham10000 --data-dir DIR`")
def data_show(
    name: Annotated[
        str,
        typer.Argument(
            help="mnist, cifar10, ham10000, digits, idx:PATH, folder:PATH, or a name that a plugin registers."
        ),
    ],
    plugin: Plugins = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the shape and the classes of a data set, with their numbers of samples."""
    with one_line_errors():
        from hsfl.data.datasets import describe, load

        load_plugins(plugin)
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


@commands.command("fetch", epilog="Example: `hsfl data fetch mnist --data-dir data`")
def data_fetch(
    name: Annotated[str, typer.Argument(help="mnist or cifar10.")],
    data_dir: DataDir = None,
    base_url: Annotated[
        str | None, typer.Option(help="Download the files from this address instead of the usual one.")
    ] = None,
) -> None:
    """Download a data set and check its checksums."""
    with one_line_errors():
        from hsfl.data.fetch import fetch

        path = fetch(name, data_dir, base_url)
    out_console.print(f"{name} is in {path}", soft_wrap=True, highlight=False)
