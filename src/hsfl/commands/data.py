"""`hsfl data list`, `hsfl data show` and `hsfl data fetch`: look at data sets and download them."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from hsfl.commands.console import (
    Changes,
    DataDir,
    Json,
    Plugins,
    load_plugins,
    one_line_errors,
    out_console,
    print_json,
    quoted,
)

commands = typer.Typer(no_args_is_help=True, help="Look at data sets and download them.")

DATA_SETS = {  # what the data set is, and patterns of a file that it has within the data directory
    "digits": ("1,797 handwritten digits, 1x32x32, from scikit-learn", ()),
    "mnist": ("70,000 handwritten digits, 1x28x28", ("MNIST/raw/train-images*", "raw/train-images*", "train-images*")),
    "cifar10": ("60,000 photographs of ten things, 3x32x32", ("cifar-10-batches-py/data_batch_1", "data_batch_1")),
    "ham10000": ("10,015 skin lesions of seven kinds, 3x64x64", ("[hH][aA][mM]10000/*10000_*", "*10000_*")),
    "idx:PATH": ("any set in MNIST's format, wherever it lies", None),
    "folder:PATH": ("any folder of class-named folders of images", None),
    "npz:PATH": ("your own arrays: train_x, train_y, test_x, test_y, or x and y", None),
    "csv:PATH": ("your own table: numbers, and a class in data.target_column", None),
    "text:PATH": ("your own text files, a folder or one file, by bytes or with data.tokenizer", None),
    "pydoc": ("Python's own documentation, a text for the preset gpt-text", ()),
}

FROM_PACKAGES = {"digits": "sklearn", "pydoc": "pydoc_data"}


def is_present(name: str, folder: Path) -> bool | None:
    """Whether a data set of DATA_SETS is in the folder, by the name of one of its files; None where its path is the user's choice."""
    if name in FROM_PACKAGES:
        return find_spec(FROM_PACKAGES[name]) is not None
    _, patterns = DATA_SETS[name]
    return None if patterns is None else any(True for pattern in patterns for _ in folder.glob(pattern))


@commands.command("list", epilog="Example: `hsfl data list --data-dir DIR`")
def data_list_command(data_dir: DataDir = None, plugin: Plugins = None, as_json: Json = False) -> None:
    """List the data sets that HSFL reads, and say which of them are here."""
    with one_line_errors():
        from hsfl.data.registry import find_data_dir
        from hsfl.plugins import REGISTERED

        load_plugins(plugin)
        folder = find_data_dir(data_dir)
        plugin_data_sets = {name: "your own" for kind, name in REGISTERED if kind == "data set"}
        present = {name: is_present(name, folder) for name in DATA_SETS} | dict.fromkeys(plugin_data_sets)
        descriptions = {name: what for name, (what, _) in DATA_SETS.items()} | plugin_data_sets
    if as_json:
        rows = [{"name": name, "here": present[name], "what": what} for name, what in descriptions.items()]
        print_json({"dir": str(folder), "data": rows})
        return
    table = Table("name", "here", "what", title=f"in {folder}", title_justify="left")
    for name, what in descriptions.items():
        table.add_row(name, {True: "yes", False: "no", None: "-"}[present[name]], what)
    out_console.print(table)


@commands.command(
    "show",
    epilog="Examples:\n\n"
    "- `hsfl data show ham10000 --data-dir DIR`\n"
    "- `hsfl data show csv:rows.csv --set data.target_column=kind --set data.client_column=machine`",
)
def data_show_command(
    name: Annotated[
        str,
        typer.Argument(
            help="mnist, cifar10, ham10000, digits, idx:PATH, folder:PATH, npz:PATH, csv:PATH, text:PATH, pydoc, or "
            "a name that a plugin registers."
        ),
    ],
    changes: Changes = None,
    plugin: Plugins = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the shape and the classes of a data set, and how many samples each class has.

    Where the data say which client holds each sample, show how many samples each client holds.
    """
    with one_line_errors():
        from hsfl.config import read_config
        from hsfl.data.registry import class_counts_of, samples_of_clients
        from hsfl.runs.client_data import read_data

        all_changes = [*(changes or []), f"data.name={quoted(name)}"]
        all_changes += [f"data.dir={quoted(str(data_dir))}"] if data_dir is not None else []
        dataset = read_data(read_config(None, all_changes, plugin or ()))
        counts, held = class_counts_of(dataset), samples_of_clients(dataset)
    shape = "x".join(map(str, dataset.train_x.shape[1:]))
    if as_json:
        classes = [count._asdict() for count in counts]
        print_json({"name": name, "shape": list(dataset.train_x.shape[1:]), "classes": classes, "clients": held})
        return
    table = Table("class", "training", "test", title=f"{name}: {shape}", title_justify="left")
    for count in counts:
        table.add_row(*(str(value) for value in count))
    out_console.print(table)
    if held is not None:
        table = Table("client", "training")
        for client, num_samples in held.items():
            table.add_row(client, str(num_samples))
        out_console.print(table)


@commands.command("fetch", epilog="Example: `hsfl data fetch mnist --data-dir data`")
def data_fetch_command(
    name: Annotated[str, typer.Argument(help="mnist or cifar10.")],
    data_dir: DataDir = None,
    base_url: Annotated[
        str | None, typer.Option(help="Download the files from this address instead of the usual one.")
    ] = None,
) -> None:
    """Download a data set and check its checksums."""
    with one_line_errors():
        from hsfl.data.download import fetch

        path = fetch(name, data_dir, base_url)
    out_console.print(f"{name} is in {path}", soft_wrap=True)
