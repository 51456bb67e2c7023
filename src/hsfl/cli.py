"""The `hsfl` command."""

import sys

import typer

from hsfl.commands import allocations, comparisons, data, models, planning, runs

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Unequal devices train one neural network together without sharing their data.",
)
for group in (runs, comparisons, models, planning, allocations):
    app.add_typer(group.commands)
app.add_typer(data.commands, name="data")

if __name__ == "__main__":
    sys.exit(app())
