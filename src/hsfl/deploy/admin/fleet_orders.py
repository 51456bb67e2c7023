"""What the main server does about orders of the operator, and about clients that offend or are late: between two rounds, never within
one. The state and its rules are in `fleet_state`."""

from collections.abc import Collection, Sequence

from hsfl.deploy.admin.admission import tell_benched
from hsfl.deploy.admin.benching import RoundOutcome, outcome_of_drop
from hsfl.deploy.main.handlers import SharedState
from hsfl.deploy.main.main_round import MainRound
from hsfl.deploy.main.roster import Member
from hsfl.deploy.settings import TAU_S
from hsfl.deploy.wire.client_messages import Stop
from hsfl.deploy.wire.messages import pack_message


def tau_now_s(shared: SharedState) -> float:
    """The time limit of a round: the operator's last word, else the run's setting."""
    return shared.control.state.tau_s or shared.kit.config.train.tau_s or TAU_S


def fewest_clients(shared: SharedState) -> int:
    """How many clients make a round, likewise."""
    return shared.control.state.min_clients or shared.settings.min_clients


def take_orders(shared: SharedState) -> None:
    """Take the operator's new orders, and tell the clients that they concern."""
    taken, roster = shared.control.take_events(), shared.roster
    shared.planner.given_cuts = {
        roster.names.index(name): cut for name, cut in shared.control.state.cuts.items() if name in roster.names
    }
    for event in taken:
        member = next((member for member in roster.members.values() if member.name == event.client), None)
        if member is not None and event.deed == "bench":
            tell_benched(shared.control, member)
    for member in list(roster.members.values()):
        if (why := shared.control.state.kicked.get(member.name)) is not None and not member.is_leaving:
            member.is_leaving = True
            roster.send(member.seat, pack_message(Stop(f"the operator has taken {member.name} out of this run: {why}")))


def members_who_may(shared: SharedState) -> dict[int, Member]:
    """The members that may take part in the next round, by seat."""
    members = {seat: member for seat, member in shared.roster.members.items() if not member.is_leaving}
    admitted = shared.control.state.admitted({member.name for member in members.values()}, fewest_clients(shared))
    return {seat: member for seat, member in members.items() if member.name in admitted}


def judge_round(
    shared: SharedState, open_round: MainRound, kept: Sequence[int], is_complete: bool, late: Collection[str] = ()
) -> None:
    """Count how a round (or, where it is not complete, a try at one) ended for each client. Whoever is benched for it is told so. late:
    clients that were kept, but were late with their test samples."""
    names = {seat: tail.name for seat, tail in open_round.tails.items()}
    drops = {names[seat]: reason for seat, reason in open_round.drops.items()}
    sentences = {names[seat]: open_round.tails[seat].dropped or "" for seat in open_round.drops}
    outcomes = {name: outcome_of_drop(reason) for name, reason in drops.items()}
    outcomes |= {names[seat]: RoundOutcome.KEPT for seat in kept}
    outcomes |= dict.fromkeys(late, RoundOutcome.LATE)
    drops |= dict.fromkeys(late, "late")
    for name, conduct in shared.control.judge(outcomes, drops, sentences, is_complete).items():
        shared.log.event("client benched", "warning", client=name, rounds=conduct.rounds_left, why=conduct.why)
        for member in shared.roster.members.values():
            if member.name == name:
                tell_benched(shared.control, member)
