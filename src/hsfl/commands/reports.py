"""`hsfl report`, and the page that other commands end with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from hsfl.commands.shared import Json, err_console, one_line_errors, out_console, print_json
from hsfl.errors import InputError

commands = typer.Typer()
NAME = "report.html"


@commands.command(
    epilog="Examples:\n\n"
    "- `hsfl report runs/mnist` writes runs/mnist/report.html\n"
    "- `hsfl report runs/compare runs/mine -o all.html` puts a comparison and a run on one page\n"
    "- `hsfl report --watch runs/mnist` shows the run while it is under way"
)
def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of runs, of comparisons, of sweeps, or of hsfl plan --out.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page; by default report.html in the folder, if it is one.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Serve the page on this machine and follow the runs.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --watch; 0 takes a free one.")] = 0,
    as_json: Json = False,
) -> None:
    """Runs, comparisons and plans as one page that works without a network."""
    with one_line_errors():
        if watch:
            if out is not None:
                raise InputError(
                    f"--watch serves the page and writes none; leave out --out {out}, or leave out --watch"
                )
            _serve(folders, port, as_json)
            return
        from hsfl.report.page import write_page

        path = write_page(folders, out or (folders[0] / NAME if len(folders) == 1 else Path(NAME)))
        num_bytes = path.stat().st_size
    if as_json:
        print_json({"path": str(path), "bytes": num_bytes})
    else:
        out_console.print(f"wrote {path} ({num_bytes / 1e6:.2g} MB)", soft_wrap=True, highlight=False)


def _serve(folders: Sequence[Path], port: int, as_json: bool) -> None:
    """Until Ctrl-C."""
    from hsfl.report.watch import HOST, make_server

    server = make_server(folders, port)
    address = f"http://{HOST}:{server.server_port}/"
    if as_json:
        print_json({"address": address})
    else:
        out_console.print(f"the page is at {address} until Ctrl-C", soft_wrap=True, highlight=False)
    out_console.file.flush()
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


def page_beside(folder: Path, console: Console = err_console) -> Path | None:
    """The page of a folder's results, in it; one that cannot be written is a warning, never the end of a long run."""
    from hsfl.report.page import write_page

    try:
        return write_page([folder], folder / NAME)
    except Exception as error:
        words = f"no {NAME}: {' '.join(str(error).split()) or type(error).__name__}"
        console.print(Text.assemble(("warning:", "yellow"), " ", words), soft_wrap=True, highlight=False)
        return None


def say_page(path: Path | None, console: Any = out_console) -> None:
    if path is not None:
        console.print(f"look at {path}", soft_wrap=True, highlight=False)
