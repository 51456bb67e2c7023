"""Who takes part: a seat for each client's name, which stays the client's for the run, and who is connected now."""

import asyncio
import math
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hsfl.deploy.wire.client_messages import Ready
from hsfl.deploy.wire.versions import DeviceVersions
from hsfl.errors import InputError
from hsfl.files import read_record, write_json


@dataclass(frozen=True)
class SeatsRecord:
    """seats.json in the run folder: names in the order of their seats, and the run's own name, drawn once. An empty name is a free
    seat. By the run's name the edge server tells the run's rounds from those of another run."""

    names: list[str]
    run: str


@dataclass(eq=False)
class Member:
    """A client that is connected and ready."""

    name: str
    seat: int
    ready: Ready
    outbox: "asyncio.Queue[bytes | None]" = field(default_factory=asyncio.Queue)  # None ends the stream
    is_leaving: bool = False  # the client has said Leave, or was told Stop
    host: str = ""  # the address that it is connected from, for the operator alone
    since: str = ""  # when it became ready
    answered: asyncio.Event = field(default_factory=asyncio.Event)  # a Knock
    answered_s: float = -math.inf  # when it last did, by the event loop's clock
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # its connection has ended


class Roster:
    """Seats by name, members by seat."""

    def __init__(self, folder: Path, names: tuple[str, ...], num_seats: int) -> None:
        self._path, self._num_seats = folder / "seats.json", num_seats
        is_resumed = self._path.exists()
        record: SeatsRecord = (
            read_record(self._path, SeatsRecord) if is_resumed else SeatsRecord([], secrets.token_hex(8))
        )
        recorded_names, self.run = record.names, record.run
        self.names = [*names, *recorded_names[len(names) :]]
        others = any(old and old != new for old, new in zip(recorded_names, names))
        if others or len({name for name in self.names if name}) < sum(map(bool, self.names)):
            raise InputError(
                f"clients are {', '.join(names)} but the run began with {', '.join(recorded_names)}; keep their order"
            )
        self.members: dict[int, Member] = {}
        self.known: dict[int, Ready] = {}  # what each client said last, connected or not, by seat
        self.joining: set[str] = set()  # connected and not ready yet
        self._unready_names: set[str] = set()  # names whose new seat is written to the file when they are ready
        self._earlier_seats: dict[str, int] = {}  # seats of names that came since the start of this process
        self.changed = asyncio.Event()
        self._write()

    def seat(self, name: str) -> int:
        """The seat of this name. A new name takes a free seat: the one that it had when it was here before, else one
        that nobody had since this process started, else the lowest."""
        if name not in self.names:
            seat = self._choose_seat(name)
            self.names += [""] * (seat + 1 - len(self.names))
            self.names[seat] = name
            self._unready_names.add(name)
            self._earlier_seats[name] = seat
        return self.names.index(name)

    def _choose_seat(self, name: str) -> int:
        free = [seat for seat in range(self._num_seats) if seat >= len(self.names) or not self.names[seat]]
        if not free:
            raise InputError(
                f"all {self._num_seats} seats are taken; free one in seats.json, or raise run.fleet.num_clients and begin a new run"
            )
        before = self._earlier_seats.get(name)
        return before if before in free else min(free, key=lambda seat: (seat in self._earlier_seats.values(), seat))

    def give_up(self, name: str) -> None:
        """Note that a client went, or was refused, before it was ready. A seat that it took newly is free again."""
        self.joining.discard(name)
        if name in self._unready_names:
            self._unready_names.discard(name)
            self.names[self.names.index(name)] = ""

    def labels(self) -> list[str]:
        """A name for every seat of the run."""
        names = [*self.names, *[""] * (self._num_seats - len(self.names))]
        return [name or f"seat {seat}" for seat, name in enumerate(names)]

    def versions(self) -> dict[str, DeviceVersions]:
        """What each client runs that has joined since this process started, by name."""
        return {self.names[seat]: ready.versions for seat, ready in sorted(self.known.items()) if self.names[seat]}

    def _write(self) -> None:
        settled = ["" if name in self._unready_names else name for name in self.names]
        write_json(self._path, asdict(SeatsRecord(settled, self.run)))

    def join(self, member: Member) -> None:
        """Take a client in. An earlier connection of the same client ends."""
        self.joining.discard(member.name)
        if member.name in self._unready_names:
            self._unready_names.discard(member.name)
            self._write()
        before = self.members.get(member.seat)
        if before is not None:
            before.outbox.put_nowait(None)
        self.members[member.seat] = member
        self.known[member.seat] = member.ready
        self.changed.set()

    def leave(self, member: Member) -> bool:
        """Note that a connection has ended; returns whether it was the client's latest."""
        if self.members.get(member.seat) is not member:
            return False
        del self.members[member.seat]
        self.changed.set()
        return True

    def send(self, seat: int, message: bytes) -> bool:
        """Send to a client, if it is connected; returns whether it is."""
        member = self.members.get(seat)
        if member is not None:
            member.outbox.put_nowait(message)
        return member is not None

    def close(self) -> None:
        """End every connection, after what was sent before."""
        for member in list(self.members.values()):
            member.outbox.put_nowait(None)
