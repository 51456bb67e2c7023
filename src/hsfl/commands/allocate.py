"""`hsfl allocate`: one round, given by explicit numbers, is solved. Imports no torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hsfl.commands.console import (
    Json,
    Options,
    Plugins,
    need_plan_extra,
    one_line_errors,
    out_console,
    print_json,
    show_table,
)
from hsfl.errors import InputError
from hsfl.formats import brief, giga, seconds, took

if TYPE_CHECKING:
    from hsfl.allocation.answer import Allocation
    from hsfl.allocation.scenario import Scenario

commands = typer.Typer()


def _parse_cuts(text: str | None) -> list[int] | None:
    """The cuts of an option: 3,4,3 -> [3, 4, 3]."""
    if text is None:
        return None
    try:
        return [int(cut) for cut in text.split(",")]
    except ValueError:
        raise InputError(f"--cuts is {text!r}; give one whole number for each client, such as 3,4,3") from None


def show_answer(answer: "Allocation", scenario: "Scenario", console: Console) -> None:
    """Show the answer to people: a line for the round, a row for each client."""
    if answer.kept.any():
        text = (
            f"round {seconds(answer.round_s, 6)}, at least {seconds(answer.lower_bound_s, 6)} is needed "
            f"(gap {100 * answer.gap:.3g} %), solved in {took(answer.seconds)}: {answer.status.advice}"
        )
    else:
        text = (
            f"nobody can finish within tau_s = {scenario.tau_s:g} s, so everyone sits out and only the model's "
            f"distribution is left, {seconds(answer.round_s, 6)} (solved in {took(answer.seconds)}); raise tau_s or choose other cuts"
        )
    console.print(text)
    if answer.cuts_lower_bound_s is not None and answer.kept.any():
        console.print(f"no cuts can beat {seconds(answer.cuts_lower_bound_s, 6)}")
    band = "channels" if answer.owner is not None else "bands"
    console.print(
        "\nseconds of the round: own, smashed, server and gradient over all mini-batches of a client (--json gives one "
        "mini-batch), the model once; the main server's cycles in G/s",
    )
    headers = ("client", "cut", "G/s", band, "own", "smashed", "server", "gradient", "model\nup", "model\ndown")
    phase_values = enumerate(answer.phases.values())  # in the answer's order: four phases of a batch, two of a model
    phases_s = [values * scenario.num_batches if position < 4 else values for position, values in phase_values]
    rows = [
        (
            str(k),
            str(cut),
            giga(answer.server_hz[k]),
            _channels_cell(answer, k),
            *(brief(phase_s[k]) for phase_s in phases_s),
        )
        for k, cut in enumerate(answer.cuts)
    ]
    show_table(console, headers, rows)


def _channels_cell(answer: "Allocation", k: int) -> str:
    if not answer.kept[k]:
        return "sits out"
    if answer.owner is not None:
        return " ".join(str(i) for i, owner in enumerate(answer.owner) if owner == k)
    assert answer.share is not None
    return brief(answer.share[k].sum())


@commands.command(
    "allocate",
    epilog="Example: `hsfl allocate docs/examples/scenario.json --cuts 2,1,2 --json`\n\n"
    "docs/scenario.md describes every field of the scenario and of the answer.",
)
def allocate_command(
    scenario: Annotated[Path, typer.Argument(help="The scenario, a JSON file (see docs/scenario.md).")],
    cuts: Annotated[
        str | None, typer.Option(help="A cut for each client, such as 3,4,3; by default the cuts are chosen.")
    ] = None,
    solver: Annotated[str, typer.Option(help="exact, paper, scip, or a policy such as ecfa.")] = "exact",
    time_limit_s: Annotated[
        float,
        typer.Option(help="Stop the search after so many seconds, with the best allocation so far and its proven gap."),
    ] = 10.0,
    gap: Annotated[
        float, typer.Option(help="Stop the search at this proven distance to the optimum, relative.")
    ] = 1e-3,
    seed: Annotated[int, typer.Option(help="The seed of the search for cuts, 0 or more.")] = 0,
    changes: Options = None,
    plugin: Plugins = None,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option(help="Write the answer to this file, too.")] = None,
) -> None:
    """Allocate cycles, subchannels and power for one round, with a proven gap."""
    with one_line_errors():
        need_plan_extra()
        from hsfl.allocation.scenario import Scenario
        from hsfl.allocation.solvers import allocate
        from hsfl.config import read_options

        options = read_options(changes or (), plugin or (), solver.split("+"))
        one_round = Scenario.read(scenario)
        answer = allocate(one_round, _parse_cuts(cuts), solver, time_limit_s, gap, seed, options)
        if out is not None:
            answer.write(out)
    if as_json:
        print_json(answer.to_dict())
    else:
        show_answer(answer, one_round, out_console)
