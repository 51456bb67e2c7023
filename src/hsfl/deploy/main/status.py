"""`hsfl status`: who is connected, with which cut, how long their phases took, who was dropped, and which server holds what."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpc import aio

from hsfl.deploy.admin.fleet_orders import fewest_clients, tau_now_s
from hsfl.deploy.admin.fleet_state import FleetState
from hsfl.deploy.main.handlers import SharedState
from hsfl.deploy.main.server_checkpoint import MainCheckpoint
from hsfl.deploy.settings import MainSettings
from hsfl.deploy.trust.expiry import bundle_days
from hsfl.deploy.wire.messages import expect_message, pack_message
from hsfl.deploy.wire.server_messages import AskStatus, Status
from hsfl.deploy.wire.transport import Peer
from hsfl.deploy.wire.versions import own_versions, version_notes
from hsfl.errors import InputError


def status_handler(shared: SharedState, checkpoint: MainCheckpoint) -> Callable[[bytes, Any], Any]:
    """The handler of Status, for the operator alone: a client learns nothing of others."""

    async def handle(request: bytes, context: Any) -> bytes:
        expect_message(request, AskStatus)
        return pack_message(Status(json.dumps(_status_report(shared, checkpoint), allow_nan=False)))

    return handle


def _status_report(shared: SharedState, checkpoint: MainCheckpoint) -> dict[str, Any]:
    """The state of the deployment as plain data."""
    num_units, open_round = shared.kit.num_units, shared.open_round
    cuts = list(open_round.plan.cuts) if open_round is not None else list(shared.planner.cuts or ())
    low, high = (
        (min(open_round.cuts), max(open_round.cuts))
        if open_round is not None
        else (checkpoint.state.start, max(cuts, default=0))
    )
    fleet = shared.control.state
    last = checkpoint.folder.rounds()[-1:]
    measured = (last[0].measured or {}) if last else {}
    edge_versions = {"the edge server": shared.edge.versions} if shared.edge.instance else {}
    clients = [
        {
            "name": name,
            "seat": seat,
            "connected": seat in shared.roster.members,
            "cut": cuts[seat] if seat < len(cuts) else None,
            "doing": _activity(shared, seat),
            "samples": sum(shared.roster.known[seat].class_counts) if seat in shared.roster.known else None,
            "measured_s": {phase: took_s[seat] for phase, took_s in measured.items()},
            "drops": shared.drops.get(name, 0),
            "from": shared.roster.members[seat].host if seat in shared.roster.members else None,
            "since": shared.roster.members[seat].since if seat in shared.roster.members else None,
            "benched": _bench_report(fleet, name),
            "kicked": fleet.kicked.get(name),
            "drops_by_reason": dict(shared.counts[name].drops),
            "late_rounds": shared.counts[name].late_rounds,
            "certificate_days": _tenths(shared.counts[name].certificate_days),
            "versions": asdict(shared.roster.known[seat].versions) if seat in shared.roster.known else None,
        }
        for seat, name in enumerate(shared.roster.names)
        if name
    ]
    return {
        "framework": shared.kit.config.framework,
        "rounds_done": checkpoint.round,
        "rounds": shared.kit.config.train.rounds,
        "open_round": None if open_round is None else open_round.round + 1,
        "waits_for_clients": shared.waits_for,
        "tau_s": tau_now_s(shared),
        "min_clients": fewest_clients(shared),
        "paused": fleet.paused,
        "draining": fleet.draining or "drain" in shared.control.pending(),
        "pending_orders": shared.control.pending(),
        "test_accuracy": last[0].test_accuracy if last else None,
        "clients": clients,
        "main_units": [low, num_units],
        "edge_units": [0, high],
        "holds_whole_model": _whole_model_holders(low, high, num_units),
        "versions": {"main": asdict(own_versions())} | {name: asdict(edge) for name, edge in edge_versions.items()},
        "version_notes": version_notes(edge_versions | shared.roster.versions(), own_versions()),
        "certificate_days": _tenths(bundle_days(Path(certs) if (certs := shared.settings.certs) else None)),
    }


def _bench_report(fleet: FleetState, name: str) -> dict[str, Any] | None:
    """Whether a client is benched: rounds that are left (None: until the operator resumes it), and why."""
    bench = fleet.benched(name)
    return None if bench is None else {"rounds": bench[0], "why": bench[1]}


def _tenths(days: float | None) -> float | None:
    return None if days is None else round(days, 1)


def _activity(shared: SharedState, seat: int) -> str:
    open_round = shared.open_round
    tail = None if open_round is None else open_round.tails.get(seat)
    if open_round is None or tail is None:
        if shared.roster.names[seat] in shared.roster.joining:
            return "joins"
        if shared.roster.names[seat] in shared.control.state.kicked:
            return "kicked"
        if shared.control.state.benched(shared.roster.names[seat]) is not None:
            return "benched" if seat in shared.roster.members else "benched, away"
        return "waits" if seat in shared.roster.members else "away"
    if tail.dropped is not None:
        return "dropped"
    if open_round.is_complete(seat):
        return "complete"
    return "uploads" if tail.end is not None else f"step {tail.step} of {tail.steps.count}"


def _whole_model_holders(low: int, high: int, num_units: int) -> list[str]:
    """The servers that hold all units of the averaged model."""
    return [*(["main"] if low == 0 else []), *(["edge"] if high == num_units else [])]


async def ask_status(settings: MainSettings, certs: Path | None) -> dict[str, Any]:
    """Ask the main server with these settings for its status. certs: the main server's bundle; None is plaintext."""
    peer = Peer(settings.listen.replace("0.0.0.0", "127.0.0.1"), "main", "main", certs)
    try:
        answer, _ = expect_message(await peer.ask("Status", pack_message(AskStatus()), 10.0), Status)
    except aio.AioRpcError as error:
        raise InputError(
            f"no status from {settings.listen} ({error.details()}); is hsfl serve main running there?"
        ) from None
    finally:
        await peer.close()
    return dict(json.loads(answer.report))
