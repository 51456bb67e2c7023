"""`hsfl report` writes or serves the page; other commands end with `write_page_beside` and `say_page`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from hsfl.commands.console import Json, err_console, one_line_errors, out_console, print_json
from hsfl.errors import InputError
from hsfl.formats import size

commands = typer.Typer()


@commands.command(
    "report",
    epilog="Examples:\n\n"
    "- `hsfl report runs/mnist` writes runs/mnist/report.html\n"
    "- `hsfl report runs/compare runs/mine -o all.html` puts a comparison and a run on one page\n"
    "- `hsfl report --watch runs/mnist` shows the run while it is under way",
)
def report_command(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of runs, of comparisons, of sweeps, or of hsfl plan --out.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The page to write; by default report.html, inside the folder if only one is given."
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve the page on this machine, and follow runs that are under way.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port of --watch; 0 takes a free port.")] = 0,
    as_json: Json = False,
) -> None:
    """Show runs, comparisons and plans on one page, which works without a network."""
    with one_line_errors():
        if watch:
            if out is not None:
                raise InputError(
                    f"--watch serves the page and writes none; leave out --out {out}, or leave out --watch"
                )
            _serve_page(folders, port, as_json)
            return
        from hsfl.report.page.page import write_report

        path = write_report(folders, out)
        num_bytes = path.stat().st_size
    if as_json:
        print_json({"path": str(path), "bytes": num_bytes})
    else:
        out_console.print(f"wrote {path} ({size(num_bytes)})", soft_wrap=True)


def _serve_page(folders: Sequence[Path], port: int, as_json: bool) -> None:
    """Serve the page until Ctrl-C."""
    from hsfl.report.watch import HOST, make_server

    server = make_server(folders, port)
    address = f"http://{HOST}:{server.server_port}/"
    if as_json:
        print_json({"address": address})
    else:
        out_console.print(f"the page is at {address} until Ctrl-C", soft_wrap=True)
    out_console.file.flush()
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


def write_page_beside(folder: Path, console: Console = err_console) -> Path | None:
    """Write the page of a folder's results into the folder; returns its path. If that fails, a warning is printed and None is
    returned, so that a long run does not end with an error."""
    from hsfl.report.page.page import PAGE_NAME, write_page

    try:
        return write_page([folder], folder / PAGE_NAME)
    except Exception as error:
        message = f"no {PAGE_NAME}: {' '.join(str(error).split()) or type(error).__name__}"
        console.print(Text.assemble(("warning:", "yellow"), " ", message), soft_wrap=True)
        return None


def say_page(path: Path | None, console: Any = out_console) -> None:
    """Name the page, if there is one."""
    if path is not None:
        console.print(f"look at {path}", soft_wrap=True)


def say_stopped(folder: Path, console: Console) -> None:
    """After Ctrl-C in a command of many runs, say how to go on, and name the page if there is something to show yet."""
    console.print(f"stopped; the same command goes on where it was, in {folder}", soft_wrap=True)
    say_page(write_page_beside(folder, Console(quiet=True)), console)
