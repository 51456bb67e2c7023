"""`hsfl plan-check`: a plan beside what runs took, in tables, as JSON, and as a figure or a page."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from hsfl.commands.console import Json, one_line_errors, out_console, print_json, show_table

commands = typer.Typer()


@commands.command(
    "plan-check",
    epilog="Examples:\n\n"
    "- `hsfl plan-check plan run` compares the plan in the folder plan with the run in the folder run\n"
    "- `hsfl plan-check plan run-1 run-2 --plan other-plan --rounds 2-6` also ranks two sets of cuts, each with its plan\n"
    "- `hsfl plan-check plan run -o check` writes check.html, check.png and check.json into the folder check",
)
def plan_check_command(
    plan: Annotated[Path, typer.Argument(help="The plan that is judged: its folder, or its plan.json.")],
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of runs of the same fleet, on real machines or simulated."),
    ],
    other_plans: Annotated[
        list[Path] | None,
        typer.Option("--plan", help="A plan of other cuts, for the runs that have them; may be given many times."),
    ] = None,
    rounds: Annotated[str, typer.Option(help="The rounds that count: 2-6, 3, or 2- up to the last.")] = "2-",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="A figure (.png, .pdf or .svg), or a folder for a page, a figure and the numbers."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare a plan with runs: the seconds of each client's phases and of the round, and the order of several cuts.

    Measured are the real seconds of a run on real machines, the modelled ones of a simulation; the median of the rounds counts. A run
    whose cuts no plan has is compared with its own modelled round, fixed before round 1. An error of +10% says that the prediction is
    a tenth longer than what was measured.
    """
    with one_line_errors():
        from hsfl.runs.prediction_check import RoundSpan
        from hsfl.runs.prediction_ranking import check_plans

        check = check_plans([plan, *(other_plans or [])], runs, RoundSpan.parse(rounds))
        written: list[Path] = []
        if out is not None:
            from hsfl.report.prediction_page import write_check

            written = write_check(check, out)
    if as_json:
        print_json(asdict(check) | {"files": [str(path) for path in written]})
        return
    _show_check(check)
    if written:
        out_console.print(f"look at {written[0]}", soft_wrap=True)


def _show_check(check: Any) -> None:
    """Print a table for each run, and the ranking."""
    from hsfl.report.prediction_tables import (
        clients_table,
        ranking_sentences,
        ranking_table,
        run_sentences,
        run_title,
    )

    for run in check.runs:
        out_console.print(run_title(run), soft_wrap=True)
        show_table(out_console, *clients_table(run))
        for sentence in run_sentences(run):
            out_console.print(sentence, soft_wrap=True)
        out_console.print()
    if check.ranking is not None:
        show_table(out_console, *ranking_table(check.ranking))
        for sentence in ranking_sentences(check.ranking):
            out_console.print(sentence, soft_wrap=True)
