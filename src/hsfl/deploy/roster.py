"""Who takes part: a seat for each client's name, which stays the client's for the run, and who is connected now."""

import asyncio
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hsfl.deploy.client_messages import Ready
from hsfl.errors import InputError
from hsfl.files import read_record, write_json


@dataclass(frozen=True)
class SeatsRecord:
    """seats.json in the run folder: names in the order of their seats, and the run's own name, drawn once. By it the edge server
    tells the run's rounds from those of another run."""

    names: list[str]
    run: str


@dataclass(eq=False)
class Member:
    """A client that is connected and ready."""

    name: str
    seat: int
    ready: Ready
    outbox: "asyncio.Queue[bytes | None]" = field(default_factory=asyncio.Queue)  # None ends the stream


class Roster:
    """Seats by name, members by seat."""

    def __init__(self, folder: Path, names: tuple[str, ...], most: int) -> None:
        self._path, self._most = folder / "seats.json", most
        found = self._path.exists()
        record: SeatsRecord = read_record(self._path, SeatsRecord) if found else SeatsRecord([], secrets.token_hex(8))
        kept, self.run = record.names, record.run
        if list(names[: len(kept)]) != kept[: len(names)]:
            raise InputError(
                f"clients are {', '.join(names)} but the run began with {', '.join(kept)}; keep their order"
            )
        self.names = kept + list(names[len(kept) :])
        self._write()
        self.members: dict[int, Member] = {}
        self.known: dict[int, Ready] = {}  # what each said last, connected or not
        self.changed = asyncio.Event()

    def seat(self, name: str) -> int:
        """The seat of this name; a new name takes the next free one."""
        if name not in self.names:
            if len(self.names) >= self._most:
                raise InputError(f"all {self._most} seats are taken; raise run.fleet.num_clients and begin a new run")
            self.names.append(name)
            self._write()
        return self.names.index(name)

    def _write(self) -> None:
        write_json(self._path, asdict(SeatsRecord(self.names, self.run)))

    def join(self, member: Member) -> None:
        """Take a client in. An earlier connection of the same client ends."""
        before = self.members.get(member.seat)
        if before is not None:
            before.outbox.put_nowait(None)
        self.members[member.seat] = member
        self.known[member.seat] = member.ready
        self.changed.set()

    def leave(self, member: Member) -> bool:
        """The client's connection is gone; whether it was the client's latest."""
        if self.members.get(member.seat) is not member:
            return False
        del self.members[member.seat]
        self.changed.set()
        return True

    def send(self, seat: int, message: bytes) -> bool:
        """Send to a client, if it is connected."""
        member = self.members.get(seat)
        if member is not None:
            member.outbox.put_nowait(message)
        return member is not None

    def close(self) -> None:
        """End every connection, after what was sent before."""
        for member in list(self.members.values()):
            member.outbox.put_nowait(None)
