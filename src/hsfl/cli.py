"""The `hsfl` command: all commands of `hsfl.commands` joined, and `--version`."""

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hsfl.commands import (
    admin,
    allocate,
    certs,
    compare,
    cost,
    data,
    doctor,
    measure,
    plan,
    plan_check,
    report,
    reproduce,
    run,
    serve,
    sweep,
)


class Command(TyperGroup):
    """All of `hsfl`, which ends with the exit code that it was given."""

    def main(self, *args: Any, **options: Any) -> Any:
        try:
            return super().main(*args, **options)
        finally:
            exec("")  # forgets a Ctrl-C that was handled: if it came inside an exec, Python would end by the signal


app = typer.Typer(
    cls=Command,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Unequal devices train one neural network together without sharing their data.",
)
for group in (run, compare, sweep, report, cost, measure, plan, plan_check, allocate, reproduce, serve, admin, doctor):
    app.add_typer(group.commands)
app.add_typer(data.commands, name="data")
app.add_typer(certs.commands, name="certs")


@app.callback(invoke_without_command=False)
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=lambda on: _print_version(on), help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options of `hsfl` itself."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # here, because it takes a tenth of a second to load

        print(f"hsfl {version('hsfl')}")
        raise typer.Exit


if __name__ == "__main__":
    sys.exit(app())
