"""`hsfl serve main`, `hsfl serve edge`, `hsfl client`, `hsfl status` and `hsfl deploy-demo`: the same training on real machines."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from hsfl.commands.console import (
    Json,
    err_console,
    need_deploy_extra,
    one_line_errors,
    out_console,
    print_json,
    show_table,
)
from hsfl.commands.report import say_page, write_page_beside
from hsfl.formats import percent

if TYPE_CHECKING:
    from hsfl.deploy.logs import Log
    from hsfl.runs.run_folder.records import RoundRecord

commands = typer.Typer()
serving = typer.Typer(no_args_is_help=True, help="Run a server of a deployment on real machines.")
commands.add_typer(serving, name="serve")

Settings = Annotated[Path, typer.Argument(help="The TOML file of this process (docs/deploy.md).")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Speak plaintext, without certificates; on this machine alone.")
]
JsonLog = Annotated[bool, typer.Option("--json-log", help="Write the log as JSON, a line for each event.")]


def _silence_grpc() -> None:
    """Silence gRPC before it is loaded: its core writes addresses to stderr, and our log already tells what happened."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _start_log(name: str, json_log: bool) -> "Log":
    from hsfl.deploy.logs import open_log  # here, because other commands need not wait for it

    log = open_log(name, json_log)
    log.adopt_others()
    log.event("starts")  # what is loaded next takes seconds
    return log


def _say_end(log: "Log", json_log: bool, sentence: str, **fields: Any) -> None:
    """Say how a process ended: in the last line of its log, and on the terminal where the log is for people."""
    log.event("ended", **fields)
    if not json_log:
        out_console.print(sentence)


@serving.command("main", epilog="Example: `hsfl serve main main.toml`")
def serve_main_command(settings: Settings, insecure: Insecure = False, json_log: JsonLog = False) -> None:
    """Run the main server: it plans, trains the clients' tails, and writes the run folder."""
    with one_line_errors():
        need_deploy_extra()
        _silence_grpc()
        log = _start_log("main", json_log)
        from hsfl.deploy.processes import serve_main  # here, because torch and gRPC take seconds to load
        from hsfl.deploy.settings import MainSettings, read_settings

        main_settings = read_settings(settings, MainSettings)
        summary = asyncio.run(serve_main(main_settings, insecure, log))
    page = write_page_beside(Path(main_settings.out), Console(quiet=True) if json_log else err_console)
    sentence = f"{summary.status} after {summary.rounds} rounds"
    if not json_log:
        say_page(page)
    _say_end(log, json_log, sentence, status=summary.status, rounds=summary.rounds, page=page is not None)
    if summary.status != "finished":
        raise typer.Exit(130 if summary.status == "interrupted" else 1)


@serving.command("edge", epilog="Example: `hsfl serve edge edge.toml`")
def serve_edge_command(settings: Settings, insecure: Insecure = False, json_log: JsonLog = False) -> None:
    """Run the edge server: it hands out heads, takes them back, and swaps sums with the main server."""
    with one_line_errors():
        need_deploy_extra()
        _silence_grpc()
        log = _start_log("edge", json_log)
        from hsfl.deploy.processes import serve_edge  # here, because torch and gRPC take seconds to load
        from hsfl.deploy.settings import EdgeSettings, read_settings

        edge_settings = read_settings(settings, EdgeSettings)
        asyncio.run(serve_edge(edge_settings, insecure, log))
    _say_end(log, json_log, "told to end", why="told to end")


@commands.command("client", epilog="Example: `hsfl client ward-1.toml`")
def client_command(settings: Settings, insecure: Insecure = False, json_log: JsonLog = False) -> None:
    """Take part from this device, with its own data, until the main server has no more rounds."""
    with one_line_errors():
        need_deploy_extra()
        _silence_grpc()
        from hsfl.deploy.processes import run_client  # here, because torch and gRPC take seconds to load
        from hsfl.deploy.settings import ClientSettings, read_settings

        client_settings = read_settings(settings, ClientSettings)
        log = _start_log(client_settings.name, json_log)
        why = asyncio.run(run_client(client_settings, insecure, log))
    _say_end(log, json_log, why, why=why)


@commands.command("status", epilog="Example: `hsfl status main.toml --json`")
def status_command(settings: Settings, insecure: Insecure = False, as_json: Json = False) -> None:
    """Ask a running main server who is connected, with which cut, how long phases took, and who was dropped."""
    with one_line_errors():
        need_deploy_extra()
        from hsfl.deploy.main.status import ask_status
        from hsfl.deploy.processes import certs_folder  # here, because torch and gRPC take seconds to load
        from hsfl.deploy.settings import MainSettings, read_settings

        main_settings = read_settings(settings, MainSettings)
        report = asyncio.run(ask_status(main_settings, certs_folder(main_settings.certs, insecure, "main")))
    print_json(report) if as_json else _show_status(report)


def _show_status(report: dict[str, Any]) -> None:
    num_connected, num_awaited = sum(client["connected"] for client in report["clients"]), report["waits_for_clients"]
    activity = "between rounds" if report["open_round"] is None else f"round {report['open_round']} is under way"
    activity = activity if num_awaited is None else f"waits for {num_awaited} clients, {num_connected} are here"
    accuracy = "" if report["test_accuracy"] is None else f", test accuracy {percent(report['test_accuracy'])}"
    out_console.print(f"{report['rounds_done']} of {report['rounds']} rounds done, {activity}{accuracy}")
    for sentence in _order_sentences(report):
        out_console.print(sentence, soft_wrap=True)
    phases = ("client", "smashed", "server", "waiting", "gradient", "model_up", "model_down")
    rows = [
        (
            client["name"],
            "yes" if client["connected"] else "no",
            "-" if client["cut"] is None else str(client["cut"]),
            client["doing"],
            *(_seconds_cell(client["measured_s"].get(phase)) for phase in phases),
            str(client["drops"]),
            str(client["late_rounds"]),
            "-" if client["certificate_days"] is None else f"{client['certificate_days']:.0f}",
        )
        for client in report["clients"]
    ]
    show_table(
        out_console, ("name", "here", "cut", "doing", *phases, "drops", "late", "days"), rows, [None] * len(rows)
    )
    out_console.print(
        "phases are measured seconds of the last round; late: rounds dropped at tau; days: until the certificate expires"
    )
    main_versions = report["versions"]["main"]
    out_console.print(
        f"hsfl {main_versions['hsfl']}, torch {main_versions['torch']}, Python {main_versions['python']} on the main server"
    )
    for note in report["version_notes"]:
        out_console.print(f"warning: {note}", soft_wrap=True)
    if (days := report["certificate_days"]) is not None:
        out_console.print(f"the main server's certificate expires in {days:.0f} days")
    (low, high), (_, edge_high) = report["main_units"], report["edge_units"]
    out_console.print(f"the main server holds units {low} to {high}, the edge server 0 to {edge_high}")
    for server in report["holds_whole_model"]:
        out_console.print(f"the {server} server holds the whole model")


def _order_sentences(report: dict[str, Any]) -> list[str]:
    """What the operator ordered, and who is benched, a line each."""
    sentences = ["paused: no round begins before hsfl admin MAIN.toml resume"] if report["paused"] else []
    sentences += ["draining: the main server ends when this round is over"] if report["draining"] else []
    for client in report["clients"]:
        if (bench := client["benched"]) is not None:
            rounds = "until it is resumed" if bench["rounds"] is None else f"for {bench['rounds']} more rounds"
            sentences.append(f"{client['name']} is benched {rounds}: {bench['why']}")
        if client["kicked"] is not None:
            sentences.append(f"{client['name']} was taken out of this run: {client['kicked']}")
    if report["pending_orders"]:
        sentences.append(f"orders that the next round takes: {'; '.join(report['pending_orders'])}")
    return sentences


def _seconds_cell(took_s: float | None) -> str:
    return "-" if took_s is None else f"{took_s:.3g}"


def _round_text(record: "RoundRecord", rounds: int) -> str:
    """A round on real machines in one line."""
    texts = [f"round {record.round:>{len(str(rounds))}}/{rounds}"]
    texts += [f"loss {record.train_loss:.4f}"] if record.train_loss is not None else []
    texts += [f"accuracy {percent(record.test_accuracy):>6}"] if record.test_accuracy is not None else []
    texts += [f"{len(record.kept)} of {len(record.started)} clients kept", f"{record.wall_s:.2f} s"]
    return "  ".join(texts)


@commands.command("deploy-demo", epilog="Example: `hsfl deploy-demo --out runs/deploy-demo`")
def deploy_demo_command(
    out: Annotated[Path, typer.Option(help="A new folder for certificates, settings, logs and the run.")] = Path(
        "runs/deploy-demo"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds to train.")] = 10,
    insecure: Insecure = False,
) -> None:
    """Run both servers and four clients as processes of this machine, with mutual TLS. They train on scikit-learn's
    digits."""
    with one_line_errors():
        need_deploy_extra()
        from hsfl.deploy.demo import CLIENTS, Demo  # here, because torch and gRPC take seconds to load

        demo = Demo(out, rounds, insecure)
        demo.prepare()
        transport = "plaintext" if insecure else "mutual TLS"
        out_console.print(
            f"starting a main server, an edge server and {len(CLIENTS)} clients, {transport}; logs are in {out}. "
            f"Each of the {2 + len(CLIENTS)} processes loads PyTorch first, which may take longer than the rounds.",
            soft_wrap=True,
        )
        status_call = f"hsfl status {out / 'main.toml'}{' --insecure' if insecure else ''}"
        out_console.print(
            f"look on from another terminal: {status_call}, or hsfl report --watch {demo.run_folder}",
            soft_wrap=True,
        )
        out_console.print("the main server's log until the first round has ended:")
        try:
            demo.start()
            demo.follow(
                lambda record: out_console.print(_round_text(record, rounds)),
                lambda line: out_console.print(f"  {line}", soft_wrap=True),
            )
        finally:
            demo.stop()
    say_page(write_page_beside(demo.run_folder))
    out_console.print(f"the model is {demo.run_folder / 'model.safetensors'}", soft_wrap=True)
