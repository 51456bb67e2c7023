"""`hsfl serve main`, `hsfl serve edge` and `hsfl client`: the same training on real machines."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from hsfl.commands.shared import need_deploy_extra, one_line_errors, out_console

commands = typer.Typer()
serving = typer.Typer(no_args_is_help=True, help="Run a server of a deployment on real machines.")
commands.add_typer(serving, name="serve")

Settings = Annotated[Path, typer.Argument(help="The TOML file of this process (docs/deploy.md).")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Speak plaintext, without certificates; on this machine alone.")
]
JsonLog = Annotated[bool, typer.Option("--json-log", help="Write the log as JSON, a line for each event.")]


@serving.command(epilog="Example: `hsfl serve main main.toml`")
def main(settings: Settings, insecure: Insecure = False, json_log: JsonLog = False) -> None:
    """Run the main server: it plans, trains the clients' tails, and writes the run folder."""
    with one_line_errors():
        need_deploy_extra()
        from hsfl.deploy.logs import open_log  # here, because torch and gRPC take seconds to load
        from hsfl.deploy.processes import serve_main
        from hsfl.deploy.settings import MainSettings, read_settings

        found = read_settings(settings, MainSettings)
        summary = asyncio.run(serve_main(found, insecure, open_log("main", json_log)))
    out_console.print(f"{summary.status} after {summary.rounds} rounds", highlight=False)
    if summary.status != "finished":
        raise typer.Exit(130 if summary.status == "interrupted" else 1)


@serving.command(epilog="Example: `hsfl serve edge edge.toml`")
def edge(settings: Settings, insecure: Insecure = False, json_log: JsonLog = False) -> None:
    """Run the edge server: it hands out heads, takes them back, and swaps sums with the main server."""
    with one_line_errors():
        need_deploy_extra()
        from hsfl.deploy.logs import open_log  # here, because torch and gRPC take seconds to load
        from hsfl.deploy.processes import serve_edge
        from hsfl.deploy.settings import EdgeSettings, read_settings

        found = read_settings(settings, EdgeSettings)
        asyncio.run(serve_edge(found, insecure, open_log("edge", json_log)))


@commands.command(epilog="Example: `hsfl client ward-1.toml`")
def client(settings: Settings, insecure: Insecure = False, json_log: JsonLog = False) -> None:
    """Take part from this device, with its own data, until the main server has no more rounds."""
    with one_line_errors():
        need_deploy_extra()
        from hsfl.deploy.logs import open_log  # here, because torch and gRPC take seconds to load
        from hsfl.deploy.processes import run_client
        from hsfl.deploy.settings import ClientSettings, read_settings

        found = read_settings(settings, ClientSettings)
        why = asyncio.run(run_client(found, insecure, open_log(found.name, json_log)))
    out_console.print(why, highlight=False)
