"""What all commands share: the consoles, common options, one-line errors, tables, and the JSON of `--json` (`print_json`)."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any
from unicodedata import category

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from hsfl.errors import InputError, install_extra


class PlainConsole(Console):
    """A console that shows text from files (paths, class names) as it is: no markup, no emoji codes, no colours for numbers.

    U+FFFD stands in place of every control character, because an escape sequence in a file could rewrite the terminal.
    """

    def __init__(self, stderr: bool) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=_without_controls(segment.text))


def _without_controls(text: str) -> str:
    """The text with U+FFFD for control, format and surrogate characters; ends of lines stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("\ufffd" if category(c) in ("Cc", "Cf", "Cs") and c != "\n" else c for c in text)


out_console, err_console = PlainConsole(stderr=False), PlainConsole(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, for programs.")]
Latex = Annotated[
    bool,
    typer.Option("--latex", help="Write each table as LaTeX (booktabs), too, beside the CSV file that it always has."),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="The folder of the data sets; by default the variable HSFL_DATA, else a cache folder."
    ),
]
Jobs = Annotated[
    int, typer.Option(min=1, help="Make so many runs side by side, each in a process of its own with one thread.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.FIELD=VALUE",
        help="Change a setting, such as train.rounds=20; may be given many times.",
    ),
]

Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="A Python file of yours that registers frameworks, policies, models or data sets (docs/extend.md); may be "
        "given many times.",
    ),
]


def load_plugins(files: list[str] | None) -> list[str]:
    """Run the plugin files, which register names; returns the files."""
    if files:
        from hsfl import plugins

        plugins.load_plugins_of(files)
    return files or []


Options = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="options.NAME.FIELD=VALUE",
        help="An option of the model or policy NAME, built in or of a plugin; may be given many times.",
    ),
]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End a command with one line and exit code 2, without a traceback, where the input is wrong."""
    try:
        yield
    except InputError as error:
        _print_error(str(error))
        raise typer.Exit(2) from None
    except MemoryError as error:
        _print_error(f"not enough memory ({error}); lower data.limit, data.image_size or train.batch_size")
        raise typer.Exit(2) from None
    except (Exception, SystemExit) as error:
        if (explanation := _explain_error(error)) is None:
            raise
        _print_error(explanation)
        raise typer.Exit(2) from None


def _explain_error(error: BaseException) -> str | None:
    """A sentence for an error that is not a bug of this package; None for a bug, which is shown with its traceback."""
    from hsfl.plugins import explain_failure

    if isinstance(error, RuntimeError) and "allocate memory" in str(error):
        return "not enough memory for this; choose smaller images, batches or models"
    if (explanation := explain_failure(error)) is not None:
        return explanation
    return f"{error}; check the place and try again" if isinstance(error, OSError) else None


def _print_error(text: str) -> None:
    message = Text.assemble(("error:", "red"), " ", " ".join(text.split()))
    err_console.print(message, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print the answer of a command under `--json`. A number that is infinite or NaN becomes null."""
    print(json.dumps(_finite(value), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_table(console: Console, headers: Sequence[str], rows: Sequence[Sequence[str]], styles: Any = None) -> None:
    """Print a table whose words and numbers are never cut: on a narrow screen cells wrap between words, or rows run over.

    styles: a style for each row, such as "bold", or None for a plain row.
    """
    columns = zip(headers, *rows)
    widths = [max(len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    table = Table(
        *(Column(header, min_width=width) for header, width in zip(headers, widths)),
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for row, style in zip(rows, styles or [None] * len(rows)):
        table.add_row(*row, style=style)
    console.print(table, crop=False)


def quoted(text: str) -> str:
    """The text as a TOML string."""
    return json.dumps(text, ensure_ascii=False)


SHAPE, CLASSES = (3, 32, 32), 10  # of a sample, where no data set is named
COMPILING = "the optimiser is compiled first, once after an installation: about a minute"


def say_compiling(console: Console, policies: Iterable[str]) -> None:
    """Tell people why the first use of the optimiser takes longer, where one of the policies needs it."""
    if any(policy != "even" for policy in policies) and find_spec("numba") is not None:
        from hsfl.allocation.numba_cache import is_cold  # here, because numba takes seconds to load

        if is_cold():
            console.print(COMPILING)


def need_plan_extra() -> None:
    """Refuse to go on without the optimiser's packages, which are an extra, because a device does not need them."""
    for name in ("numba", "pymoo", "pyscipopt"):
        if find_spec(name) is None:
            raise InputError(f"the optimiser needs {name}; {install_extra('plan')}")


def need_deploy_extra() -> None:
    """Refuse to go on without the packages for real machines, which are an extra, because a simulation does not need them."""
    for module, package in (
        ("grpc", "grpcio"),
        ("cryptography", "cryptography"),
        ("prometheus_client", "prometheus_client"),
    ):
        if find_spec(module) is None:
            raise InputError(f"real machines need {package}; {install_extra('deploy')}")
