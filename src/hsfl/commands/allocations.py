"""`hsfl allocate`: one round from explicit numbers. Imports no torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hsfl.commands.shared import need_plan_extra, one_line_errors, out_console, print_json
from hsfl.errors import InputError

if TYPE_CHECKING:
    from hsfl.allocation.answer import Allocation

commands = typer.Typer()


def parse_cuts(text: str | None) -> list[int] | None:
    """3,4,3 -> [3, 4, 3]."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--cuts is {text!r}; give one whole number for each client, such as 3,4,3") from None


def report(answer: "Allocation", console: Console) -> None:
    """The answer for people: one line for the round, one row for each client."""
    console.print(
        f"round {answer.round_s:.6g} s, at least {answer.lower_bound_s:.6g} s is needed "
        f"(gap {100 * answer.gap:.3g} %), solved in {1e3 * answer.seconds:.3g} ms: {answer.status.advice}",
        highlight=False,
    )
    if answer.cuts_lower_bound_s is not None:
        console.print(f"no cuts can beat {answer.cuts_lower_bound_s:.6g} s", highlight=False)
    phases = ("own", "smashed", "server", "gradient", "model up", "model down")  # seconds, in the order of the answer
    table = Table("client", "cut", "Gcycles/s", "subchannels", *phases, box=SIMPLE_HEAD)
    for k, cut in enumerate(answer.cuts):
        times = ["-" if values[k] != values[k] else f"{values[k]:.3g}" for values in answer.phases.values()]
        table.add_row(str(k), str(cut), f"{answer.server_hz[k] / 1e9:.3g}", _owned(answer, k), *times)
    console.print(table)


def _owned(answer: "Allocation", k: int) -> str:
    if not answer.kept[k]:
        return "sits out"
    if answer.owner is not None:
        return ",".join(str(i) for i, owner in enumerate(answer.owner) if owner == k)
    assert answer.share is not None
    return f"{answer.share[k].sum():.3g} in all"


@commands.command("allocate", epilog="Example: `hsfl allocate scenario.json --cuts 3,4,3 --json`")
def allocate_command(
    scenario: Annotated[Path, typer.Argument(help="scenario file (JSON)")],
    cuts: Annotated[str | None, typer.Option(help="a cut for each client, such as 3,4,3; chosen if not given")] = None,
    solver: Annotated[str, typer.Option(help="exact, paper, scip, or a baseline's rule such as ecfa")] = "exact",
    time_limit_s: Annotated[float, typer.Option(help="stop then, with the best and its proven gap")] = 10.0,
    gap: Annotated[float, typer.Option(help="proven distance to the optimum to stop at, relative")] = 1e-3,
    seed: Annotated[int, typer.Option(help="for choosing cuts")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="print the answer as JSON")] = False,
    out: Annotated[Path | None, typer.Option(help="write the answer to this file, too")] = None,
) -> None:
    """Allocate cycles, subchannels and power for one round, with a proven gap."""
    with one_line_errors():
        need_plan_extra()
        from hsfl.allocation.joint import allocate
        from hsfl.allocation.scenario import Scenario

        answer = allocate(Scenario.read(scenario), parse_cuts(cuts), solver, time_limit_s, gap, seed)
        if out is not None:
            answer.write(out)
    if json_:
        print_json(answer.to_dict())
    else:
        report(answer, out_console)
