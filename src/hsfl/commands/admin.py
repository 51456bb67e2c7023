"""`hsfl admin`: orders to a main server, which it takes before its next round."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from hsfl.commands.console import Json, need_deploy_extra, one_line_errors, out_console, print_json
from hsfl.errors import InputError

if TYPE_CHECKING:
    from hsfl.deploy.admin.operator_events import OperatorEvent

commands = typer.Typer()


class OrderWord(StrEnum):
    """What can be ordered."""

    KICK = "kick"
    BENCH = "bench"
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    SET = "set"


EXAMPLES = """Examples, each with the same main.toml as `hsfl serve main`:

`hsfl admin main.toml pause`: no new round begins

`hsfl admin main.toml resume`: rounds go on; undoes pause and drain

`hsfl admin main.toml drain`: end when the open round is over; the next start goes on from there

`hsfl admin main.toml bench ward-3 --rounds 5`: ward-3 sits out five rounds; without --rounds, until it is resumed

`hsfl admin main.toml kick ward-3 --why "sold"`: ward-3 is told to end, and is refused when it comes again

`hsfl admin main.toml resume ward-3`: ward-3 takes part again, and its offences are forgiven

`hsfl admin main.toml set tau_s=90 min_clients=3 cut.ward-3=2`"""


@commands.command("admin", epilog=EXAMPLES)
def admin_command(
    settings: Annotated[Path, typer.Argument(help="The main server's TOML file.")],
    order: Annotated[OrderWord, typer.Argument(help="What to do.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="The device's name; with set: tau_s=SECONDS, min_clients=NUMBER, cut.NAME=CUT.",
            metavar="[NAME | SETTING=VALUE]...",
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="With bench: how many rounds.")] = None,
    why: Annotated[str, typer.Option(help="With bench and kick: the reason, which the device logs.")] = "",
    as_json: Json = False,
) -> None:
    """Order a main server about: the order is written to events.jsonl in its run folder and taken before the next round.

    Run this on the main server's machine, as its user. An order survives restarts, and may be given while the server is down.
    """
    with one_line_errors():
        need_deploy_extra()
        from hsfl.deploy.admin.fleet_state import check_event, read_facts
        from hsfl.deploy.admin.operator_events import EVENTS_FILE, append_event
        from hsfl.deploy.settings import MainSettings, read_settings
        from hsfl.runs.run_folder.folder import RunFolder  # here, because these take seconds to load

        folder = RunFolder(read_settings(settings, MainSettings).out)
        event = _event_of_words(order, words or [], rounds, why)
        check_event(event, read_facts(folder))
        append_event(folder.path, event)
    if as_json:
        print_json({"order": str(event), "time": event.time, "file": str(folder.path / EVENTS_FILE)})
    else:
        out_console.print(
            f"{event}: the main server takes this before its next round; hsfl status shows what waits", soft_wrap=True
        )


def _event_of_words(order: OrderWord, words: list[str], rounds: int | None, why: str) -> "OperatorEvent":
    """The order as it was typed; an error where words are missing or too many."""
    from hsfl.deploy.admin.operator_events import OperatorEvent, time_now

    if rounds is not None and order != OrderWord.BENCH:
        raise InputError(f"--rounds is {rounds}, which {order} does not take; leave it out")
    if why and order not in (OrderWord.BENCH, OrderWord.KICK):
        raise InputError(f"--why is {why!r}, which {order} tells nobody; leave it out")
    if len(why) > MOST_WHY:
        raise InputError(f"--why has {len(why)} characters; give at most {MOST_WHY}")
    if order == OrderWord.SET:
        if not words:
            raise InputError("set lacks a setting; write tau_s=90, min_clients=3 or cut.NAME=2")
        assignments = [_assignment(word) for word in words]
        values = dict(assignments)
        if twice := [name for name, value in assignments if value != values[name]]:
            raise InputError(f"set has several values for {twice[0]}; give one")
        return OperatorEvent(time_now(), "set", values=values)
    takes_name = order in (OrderWord.KICK, OrderWord.BENCH, OrderWord.RESUME)
    if len(words) > takes_name:
        way_out = "give one device at a time" if takes_name else "leave it out"
        raise InputError(f"{order} does not take {words[-1]!r}; {way_out}")
    if not words and order in (OrderWord.KICK, OrderWord.BENCH):
        raise InputError(f"{order} lacks the name of a device; try hsfl admin MAIN.toml {order} NAME")
    return OperatorEvent(time_now(), cast(Any, order.value), words[0] if words else None, rounds, why=why)


MOST_WHY = 300  # characters


def _assignment(word: str) -> tuple[str, float]:
    name, sign, text = word.partition("=")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not sign or not 0 <= value <= 1e15:
        raise InputError(f"set does not understand {word!r}; write tau_s=90, min_clients=3 or cut.NAME=2")
    return name, value
