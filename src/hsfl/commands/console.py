"""What all commands share: consoles, options, and errors of one line."""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any
from unicodedata import category

import typer
from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from hsfl.errors import InputError


class PlainConsole(Console):
    """A console that shows people's words (paths, class names) as they are: no markup, no emoji codes, no colours for numbers, and a
    sign in the place of every control character, since an escape sequence in a file could rewrite the terminal."""

    def __init__(self, stderr: bool) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=without_controls(segment.text))


def without_controls(text: str) -> str:
    """The text with U+FFFD for control, format and surrogate characters; ends of lines stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("\ufffd" if category(c) in ("Cc", "Cf", "Cs") and c != "\n" else c for c in text)


out_console, err_console = PlainConsole(stderr=False), PlainConsole(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, for programs.")]
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
    """Run the user's own files, so that the names that they register are known; returns the files."""
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


def read_options(changes: list[str] | None, files: list[str] | None, names: Iterable[str]) -> Any:
    """The options of a config with these changes. files: plugins to load first. names: of the models or policies in
    use; changes to the options of others are refused."""
    from hsfl.config import read_config, set_name

    wanted = tuple(f"options.{name}." for name in names)
    for change in changes or []:
        if not set_name(change).startswith(wanted):
            raise InputError(f"--set {change} has no effect here; give {wanted[0]}FIELD=VALUE, or leave it out")
    return read_config(None, changes or [], files or ()).options


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End a command with one line and exit code 2, without a traceback, where the input is wrong."""
    try:
        yield
    except InputError as error:
        _say_error(str(error))
        raise typer.Exit(2) from None
    except MemoryError as error:
        _say_error(f"not enough memory ({error}); lower data.limit, data.image_size or train.batch_size")
        raise typer.Exit(2) from None
    except (Exception, SystemExit) as error:
        if (words := _words(error)) is None:
            raise
        _say_error(words)
        raise typer.Exit(2) from None


def _words(error: BaseException) -> str | None:
    """What to say of an error that is no mistake of this package; None for such a mistake, which is shown with its
    traceback."""
    from hsfl.plugins import explain_failure

    if isinstance(error, RuntimeError) and "allocate memory" in str(error):
        return "not enough memory for this; choose smaller images, batches or models"
    if (words := explain_failure(error)) is not None:
        return words
    return f"{error}; check the place and try again" if isinstance(error, OSError) else None


def _say_error(text: str) -> None:
    line = Text.assemble(("error:", "red"), " ", " ".join(text.split()))
    err_console.print(line, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value as JSON, in which a number that is infinite or NaN becomes null."""
    print(json.dumps(_finite(value), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def quoted(text: str) -> str:
    """The text as a TOML string."""
    return json.dumps(text, ensure_ascii=False)


def say_compiling(console: Console, policies: Iterable[str]) -> None:
    """Tell people why the first use of the optimiser takes longer, where one of the policies needs it."""
    if any(policy != "even" for policy in policies) and find_spec("numba") is not None:
        from hsfl.allocation.numba_cache import is_cold  # here, because numba takes seconds to load

        if is_cold():
            console.print("the optimiser is compiled first, once after an installation: about a minute")


def need_plan_extra() -> None:
    """Refuse to go on without the optimiser's packages, which are an extra, because a device does not need them."""
    for name in ("numba", "pymoo", "pyscipopt"):
        if find_spec(name) is None:
            raise InputError(f"the optimiser needs {name}; pip install 'hsfl[plan]'")


def need_deploy_extra() -> None:
    """Refuse to go on without the packages for real machines, which are an extra, because a simulation does not need them."""
    for module, package in (
        ("grpc", "grpcio"),
        ("cryptography", "cryptography"),
        ("prometheus_client", "prometheus_client"),
    ):
        if find_spec(module) is None:
            raise InputError(f"real machines need {package}; pip install 'hsfl[deploy]'")
