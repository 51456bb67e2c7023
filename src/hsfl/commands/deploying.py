"""`hsfl serve main`, `hsfl serve edge` and `hsfl client`: the same training on real machines."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hsfl.commands.shared import need_deploy_extra, one_line_errors, out_console

if TYPE_CHECKING:
    from hsfl.deploy.logs import Log

commands = typer.Typer()
serving = typer.Typer(no_args_is_help=True, help="Run a server of a deployment on real machines.")
commands.add_typer(serving, name="serve")

Settings = Annotated[Path, typer.Argument(help="The TOML file of this process (docs/deploy.md).")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Speak plaintext, without certificates; on this machine alone.")
]
JsonLog = Annotated[bool, typer.Option("--json-log", help="Write the log as JSON, a line for each event.")]


def _quiet(json_log: bool) -> None:
    """Before gRPC is loaded: its core writes lines of its own to stderr, which are no JSON."""
    if json_log:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _log(name: str, json_log: bool) -> "Log":
    from hsfl.deploy.logs import open_log  # here, because other commands need not wait for it

    log = open_log(name, json_log)
    log.adopt_others()
    return log


@serving.command(epilog="Example: `hsfl serve main main.toml`")
def main(settings: Settings, insecure: Insecure = False, json_log: JsonLog = False) -> None:
    """Run the main server: it plans, trains the clients' tails, and writes the run folder."""
    with one_line_errors():
        need_deploy_extra()
        _quiet(json_log)
        from hsfl.deploy.processes import serve_main  # here, because torch and gRPC take seconds to load
        from hsfl.deploy.settings import MainSettings, read_settings

        found = read_settings(settings, MainSettings)
        summary = asyncio.run(serve_main(found, insecure, _log("main", json_log)))
    out_console.print(f"{summary.status} after {summary.rounds} rounds", highlight=False)
    if summary.status != "finished":
        raise typer.Exit(130 if summary.status == "interrupted" else 1)


@serving.command(epilog="Example: `hsfl serve edge edge.toml`")
def edge(settings: Settings, insecure: Insecure = False, json_log: JsonLog = False) -> None:
    """Run the edge server: it hands out heads, takes them back, and swaps sums with the main server."""
    with one_line_errors():
        need_deploy_extra()
        _quiet(json_log)
        from hsfl.deploy.processes import serve_edge  # here, because torch and gRPC take seconds to load
        from hsfl.deploy.settings import EdgeSettings, read_settings

        found = read_settings(settings, EdgeSettings)
        asyncio.run(serve_edge(found, insecure, _log("edge", json_log)))


@commands.command(epilog="Example: `hsfl client ward-1.toml`")
def client(settings: Settings, insecure: Insecure = False, json_log: JsonLog = False) -> None:
    """Take part from this device, with its own data, until the main server has no more rounds."""
    with one_line_errors():
        need_deploy_extra()
        _quiet(json_log)
        from hsfl.deploy.processes import run_client  # here, because torch and gRPC take seconds to load
        from hsfl.deploy.settings import ClientSettings, read_settings

        found = read_settings(settings, ClientSettings)
        why = asyncio.run(run_client(found, insecure, _log(found.name, json_log)))
    out_console.print(why, highlight=False)
