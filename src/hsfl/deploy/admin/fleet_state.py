"""The state of a fleet beside its model: what the operator ordered, and who is benched. A value: an order or a round goes in, the next
state comes out. It lies in the main server's checkpoint, and orders that came after the checkpoint are read again from their file.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hsfl.config import RunConfig
from hsfl.deploy.admin.benching import BenchRules, Conduct, RoundOutcome, after_round, after_waiting
from hsfl.deploy.admin.operator_events import OperatorEvent
from hsfl.errors import InputError, known_name
from hsfl.files import read_object
from hsfl.framework_table import method
from hsfl.runs.run_folder.folder import RunFolder

MOST_TAU_S = 10_000_000.0
CUT = "cut."  # before a client's name: the setting of its cut
SETTINGS = ("tau_s", "min_clients", "cut.NAME")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Hold:
    """A client that the operator has benched. rounds: left to sit out; None: until it is resumed."""

    rounds: int | None
    why: str


@dataclass(frozen=True)
class FleetState:
    """What holds for the next round. Clients are named, as seats are their names' for the whole run."""

    num_events: int = 0  # lines of the operator's file that this state contains
    paused: bool = False
    draining: bool = False
    tau_s: float | None = None  # these three in the place of the settings, where the operator has set them
    min_clients: int | None = None
    cuts: dict[str, int] = field(default_factory=dict)
    kicked: dict[str, str] = field(default_factory=dict)  # why, by client
    held: dict[str, Hold] = field(default_factory=dict)
    conducts: dict[str, Conduct] = field(default_factory=dict)  # of clients of which something counts

    def benched(self, name: str) -> tuple[int | None, str] | None:
        """How many rounds a client still sits out (None: until it is resumed), and why; None where it is not benched."""
        if (hold := self.held.get(name)) is not None:
            return hold.rounds, hold.why
        conduct = self.conducts.get(name, Conduct())
        return (conduct.rounds_left, conduct.why) if conduct.is_benched else None

    def admitted(self, names: Collection[str], fewest: int) -> set[str]:
        """Who of these clients may take part in the next round. Where they would be fewer than `fewest` make a round, clients that the rules
        have benched are taken in early, the shortest sentence first: a bench ends no run. What the operator ordered stands."""
        ordered = {name for name in names if name not in self.kicked and name not in self.held}
        free = {name for name in ordered if self.benched(name) is None}
        waiting = sorted(ordered - free, key=lambda name: (self.conducts[name].rounds_left, name))
        return free | set(waiting[: max(fewest - len(free), 0)])


def after_event(state: FleetState, event: OperatorEvent) -> FleetState:
    """The state after an order. Orders that change nothing are none the worse."""
    name, why = event.client, event.why or "the operator gave no reason"
    match event.deed:
        case "pause":
            return replace(state, paused=True)
        case "drain":
            return replace(state, draining=True)
        case "drained":
            return replace(state, draining=False)
        case "resume" if name is not None:
            return replace(
                state, kicked=_without(state.kicked, name), held=_without(state.held, name), conducts=_without(state.conducts, name)
            )  # fmt: skip
        case "resume":
            return replace(state, paused=False, draining=False)
        case "kick" if name is not None:
            return replace(state, kicked=state.kicked | {name: why})
        case "bench" if name is not None:
            return replace(state, held=state.held | {name: Hold(event.rounds, why)})
        case "set" if event.values:
            cuts = {key.removeprefix(CUT): int(value) for key, value in event.values.items() if key.startswith(CUT)}
            tau_s, fewest = event.values.get("tau_s", state.tau_s), event.values.get("min_clients", state.min_clients)
            return replace(
                state, cuts=state.cuts | cuts, tau_s=tau_s, min_clients=None if fewest is None else int(fewest)
            )
        case _:
            raise InputError(f"the order {event.deed} lacks a client or a value; orders are given by hsfl admin")


def after_completed_round(
    state: FleetState, rules: BenchRules, outcomes: Mapping[str, RoundOutcome], sentences: Mapping[str, str]
) -> FleetState:
    """The state after a round that was completed. outcomes: of the clients that were in it. sentences: why they were dropped."""
    waited = {name: after_waiting(conduct) for name, conduct in state.conducts.items()}
    held = {name: _after_waiting(hold) for name, hold in state.held.items() if hold.rounds != 1}
    return after_attempt(replace(state, conducts=waited, held=held), rules, outcomes, sentences)


def after_attempt(
    state: FleetState, rules: BenchRules, outcomes: Mapping[str, RoundOutcome], sentences: Mapping[str, str]
) -> FleetState:
    """The state after a try at a round: what the clients did counts, but nobody has sat out a round."""
    judged = {
        name: after_round(rules, state.conducts.get(name, Conduct()), outcome, sentences.get(name, ""))
        for name, outcome in outcomes.items()
    }
    conducts = {name: conduct for name, conduct in (state.conducts | judged).items() if conduct != Conduct()}
    return replace(state, conducts=conducts)


def _after_waiting(hold: Hold) -> Hold:
    return hold if hold.rounds is None else replace(hold, rounds=hold.rounds - 1)


def _without(table: dict[str, Value], name: str) -> dict[str, Value]:
    return {other: value for other, value in table.items() if other != name}


# --- whether an order can be meant


@dataclass(frozen=True)
class FleetFacts:
    """What an order is checked against. deepest: cut that each client's memory holds, as far as that is known."""

    config: RunConfig
    names: tuple[str, ...]
    deepest: dict[str, int]
    num_units: int | None = None  # of the model; None: not known before the first round


def read_facts(folder: RunFolder) -> FleetFacts:
    """What the files of a run folder say."""
    if not folder.config_path.exists():
        raise InputError(f"{folder.path} holds no run yet; start hsfl serve main first")
    names = tuple(str(name) for name in read_object(folder.path / "seats.json").get("names", []) if name)
    clients = folder.clients()
    known = {} if clients is None or clients.names is None else dict(zip(clients.names, clients.max_cut))
    return FleetFacts(folder.config(), names, {name: cut for name, cut in known.items() if name in names})


def check_event(event: OperatorEvent, facts: FleetFacts) -> None:
    """Refuse an order that names nobody of this run, or a value that no round can have."""
    after_event(FleetState(), event)
    if event.client is not None:
        known_name("client", event.client, facts.names)
    for name, value in event.values.items():
        _check_value(name, value, facts)


def _check_value(name: str, value: float, facts: FleetFacts) -> None:
    train, fleet = facts.config.train, facts.config.fleet
    if name == "tau_s":
        if not 0 < value <= MOST_TAU_S:
            raise InputError(f"tau_s is {value:g}; give seconds above 0, at most {MOST_TAU_S:g}")
        return
    if not name.startswith(CUT):
        known_name("setting", name, ("min_clients",) if name == "min_clients" else SETTINGS)
    if value != int(value):
        raise InputError(f"{name} is {value:g}; give a whole number")
    if name == "min_clients":
        most = train.clients_per_round or fleet.num_clients
        if not 1 <= value <= most:
            raise InputError(f"min_clients is {value:g}; give 1 to {most}, as a round of this run has no more clients")
        return
    client = known_name("client", name.removeprefix(CUT), facts.names)
    if not method(facts.config.framework).own_cuts:
        raise InputError(f"{name} is given, but with {facts.config.framework} all clients have one cut; leave it out")
    most_cut = facts.deepest.get(client, facts.num_units)
    if value < fleet.min_cut or (most_cut is not None and value > most_cut):
        range_text = f"{fleet.min_cut} or more" if most_cut is None else f"{fleet.min_cut} to {most_cut}"
        raise InputError(f"{name} is {value:g}; give {range_text}, which the run allows and the device's memory holds")
