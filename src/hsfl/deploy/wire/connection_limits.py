"""How many connections a server holds, and for how long one may stay without a name.

gRPC accepts connections by itself, and takes a file descriptor for each before anybody knows who is there. So that strangers
cannot take the descriptors that a server needs for its own files:

- the process may have as many descriptors as the system grants it (`raise_descriptor_limit`), and gRPC closes at once what
  comes beyond `ConnectionLimits.in_all`, which leaves `RESERVED` descriptors for everything else;
- gRPC ends a TLS handshake that takes longer than HANDSHAKE_S;
- `ConnectionWatch` looks at the server's connections a few times a second. A connection has a name once the gate has admitted
  a call on it. Connections without a name are few, in all and of one address, and short; those of one name are few, too. The
  oldest go first, since an honest handshake is short.

Bytes are not relayed: the watch shuts a connection down by a second descriptor of the same socket, and gRPC sees its end.
Connections are found in /dev/fd, so this works on Linux and macOS; elsewhere the limits of gRPC hold alone.
"""

import errno
import ipaddress
import os
import socket
import stat
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from hsfl.deploy.logs import Log
from hsfl.deploy.metrics import Metrics

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MOST_CONNECTIONS = 4096  # of one server, where there are descriptors for so many; each takes some 20 KB
MOST_DESCRIPTORS = 65_536  # that a process asks for
RESERVED = 256  # descriptors for the server's own files, its libraries and its calls
HANDSHAKE_S = 15.0  # for TLS
SCAN_S = 0.25  # between two looks at the connections
LOG_S = 60.0  # between two log lines about refused connections
SPARE = 8  # descriptors that the watch holds, for a look at the connections when there are no others
OPEN_FILES = Path("/dev/fd")

Address = tuple[str, int]  # IP address and port of a peer


@dataclass(frozen=True)
class ConnectionLimits:
    """The most connections of a server: in all, without a name, without a name from one address, and of one name. unnamed_s:
    for how long one may stay without a name."""

    in_all: int
    unnamed: int = 512
    unnamed_of_address: int = 64  # devices behind one router have one address; each has a name after a moment
    of_name: int = 32  # a device has one or two, and those that its broken links have left behind
    unnamed_s: float = 30.0

    @classmethod
    def of_process(cls) -> "ConnectionLimits":
        """The limits by the descriptors that this process may have."""
        most = raise_descriptor_limit()
        in_all = min(MOST_CONNECTIONS, most - min(RESERVED, most // 2))
        return cls(in_all, unnamed=min(cls.unnamed, in_all // 2))

    @property
    def options(self) -> list[tuple[str, int]]:
        """gRPC's options for a server."""
        return [
            ("grpc.max_allowed_incoming_connections", self.in_all),
            ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE_S)),
        ]


def raise_descriptor_limit() -> int:
    """Let this process have as many descriptors as the system grants, up to MOST_DESCRIPTORS; returns how many."""
    if resource is None:
        return MOST_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS grants less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


@dataclass
class Connection:
    """A connection that a server has accepted."""

    address: Address
    since_s: float  # when the watch saw it first
    name: str | None = None  # whose calls the gate has admitted
    is_shut: bool = False


def excess_connections(connections: Iterable[Connection], limits: ConnectionLimits, now_s: float) -> dict[Address, str]:
    """The connections that are to be shut down, and why: `deadline`, `name`, `address` or `crowd`."""
    reasons: dict[Address, str] = {}
    by_name, by_address, unnamed = defaultdict[str, list[Address]](list), defaultdict[str, list[Address]](list), []
    for connection in sorted(connections, key=lambda connection: connection.since_s):
        if connection.name is not None:
            by_name[connection.name].append(connection.address)
        elif now_s - connection.since_s > limits.unnamed_s:
            reasons[connection.address] = "deadline"
        else:
            by_address[connection.address[0]].append(connection.address)
            unnamed.append(connection.address)
    for groups, most, reason in ((by_name, limits.of_name, "name"), (by_address, limits.unnamed_of_address, "address")):
        for addresses in groups.values():
            reasons |= dict.fromkeys(addresses[: max(len(addresses) - most, 0)], reason)
    left = [address for address in unnamed if address not in reasons]
    return reasons | dict.fromkeys(left[: max(len(left) - limits.unnamed, 0)], "crowd")


class ConnectionWatch:
    """Looks at a server's connections from a thread of its own, which goes on while the event loop writes a file."""

    def __init__(self, limits: ConnectionLimits, log: Log, metrics: Metrics) -> None:
        self.limits, self._log, self._metrics = limits, log, metrics
        self.port = 0
        self.connections: dict[Address, Connection] = {}
        self._known: dict[int, Address | None] = {}  # by inode; None: no connection of this server
        self._named: dict[Address, str] = {}
        self._missed = set[Address]()  # named, and not there at the last look
        self._handshakes = self._handshakes_before = self._num_named = self._num_shut = self._num_failed = 0
        self._refused, self._logged_s = Counter[str](), dict[str, float]()  # when a line was logged last, by its level
        self._lock, self._ending = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hsfl-connections", daemon=True)
        self._spare: list[int] = []

    def start(self, port: int) -> None:
        """Watch the connections to this port of ours."""
        self.port = port
        if OPEN_FILES.is_dir():
            self._hold_spare()
            self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self._give_spare()

    def begin_handshake(self) -> None:
        """A TLS handshake begins. gRPC says so from threads of its own."""
        with self._lock:
            self._handshakes += 1

    def admit(self, peer: str, name: str) -> None:
        """The gate has admitted a call of this name. peer: as gRPC writes it, such as ipv4:10.0.0.7:51234."""
        if (address := peer_address(peer)) is not None and self._named.get(address) != name:
            with self._lock:
                self._num_named += address not in self._named
                self._named[address] = name

    def _watch(self) -> None:
        while not self._ending.wait(SCAN_S):
            try:
                self.look(time.monotonic())
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self._give_spare()  # for the next look
                self._log.event("there are no descriptors left; raise LimitNOFILE", "error")
            else:
                self._hold_spare()

    def _hold_spare(self) -> None:
        with suppress(OSError):
            while len(self._spare) < SPARE:
                self._spare.append(os.open(os.devnull, os.O_RDONLY))

    def _give_spare(self) -> None:
        while self._spare:
            os.close(self._spare.pop())

    def look(self, now_s: float) -> None:
        """Look at all connections once, and shut down those that are too many or too old."""
        with self._lock:
            handshakes, self._handshakes_before = self._handshakes_before, self._handshakes
        present = self._present()
        with self._lock:
            # A call may be admitted on a connection that this look came too early for: only the second look that misses it forgets it.
            gone = {address for address in self._named if address not in present}
            for address in gone & self._missed:
                del self._named[address]
            self._missed = gone
            names, num_named = dict(self._named), self._num_named
        self.connections = {address: self.connections.get(address) or Connection(address, now_s) for address in present}
        for address, connection in self.connections.items():
            connection.name = names.get(address)
        live = [connection for connection in self.connections.values() if not connection.is_shut]
        reasons = excess_connections(live, self.limits, now_s)
        for address, reason in reasons.items():
            if _shut_down(present[address], self.port, address):
                self.connections[address].is_shut = True
                self._num_shut += self.connections[address].name is None
                self._refuse(reason)
        # A handshake that had begun by the look before, has no name, was not shut down and is gone, has failed, or was a probe.
        waiting = sum(connection.name is None and not connection.is_shut for connection in self.connections.values())
        if (failed := handshakes - num_named - self._num_shut - waiting) > self._num_failed:
            self._refuse("no_call", failed - self._num_failed)
            self._num_failed = failed
        if len(present) >= self.limits.in_all:
            self._refuse("full")
        self._metrics.connections.set(len(self.connections))
        self._log_refused(now_s)

    def _present(self) -> dict[Address, int]:
        """The connections of this server that are open, each with its descriptor."""
        present, known = dict[Address, int](), dict[int, Address | None]()
        for entry in os.listdir(OPEN_FILES):
            number = int(entry)
            with _closed_meanwhile():
                status = os.fstat(number)
                if stat.S_ISSOCK(status.st_mode):
                    inode = status.st_ino
                    known[inode] = self._known[inode] if inode in self._known else _accepted_from(number, self.port)
                    if (address := known[inode]) is not None:
                        present[address] = number
        self._known = known
        return present

    def _refuse(self, reason: str, count: int = 1) -> None:
        self._refused[reason] += count
        self._metrics.refused_connections(reason, count)

    def _log_refused(self, now_s: float) -> None:
        """Say once a minute how many connections were refused. Probes that made no call hold back no warning."""
        level = "info" if self._refused.keys() == {"no_call"} else "warning"
        if self._refused and now_s - self._logged_s.get(level, -LOG_S) >= LOG_S:
            counts: dict[str, Any] = dict(self._refused)
            self._log.event("connections refused", level, open=len(self.connections), **counts)
            self._refused.clear()
            self._logged_s[level] = now_s


def peer_address(peer: str) -> Address | None:
    """The address in gRPC's words for a peer; None where there is none, as of a Unix socket."""
    kind, _, place = unquote(peer).partition(":")
    host, _, port = place.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return _plain_host(host.removeprefix("[").removesuffix("]")), int(port)


def _plain_host(host: str) -> str:
    """An IP address as one text, whether it came by IPv4, by IPv4 within IPv6, or with the name of an interface."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str(getattr(address, "ipv4_mapped", None) or address)


@contextmanager
def _closed_meanwhile() -> Iterator[None]:
    """gRPC may close a descriptor at any time, and its number may be a file's by now."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.ENOTSOCK):
            raise


def _same_socket(number: int) -> socket.socket:
    """The socket of a descriptor by another descriptor, which is ours to close."""
    copy = os.dup(number)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _accepted_from(number: int, port: int) -> Address | None:
    """Whose connection to this port of ours a descriptor is; None if it is something else."""
    with _same_socket(number) as place:
        return _peer_of(place, port)


def _peer_of(place: socket.socket, port: int) -> Address | None:
    with suppress(OSError):  # a socket that listens, or whose peer is gone
        if place.family in (socket.AF_INET, socket.AF_INET6) and place.getsockname()[1] == port:
            host, peer_port = place.getpeername()[:2]
            return _plain_host(host), peer_port
    return None


def _shut_down(number: int, port: int, address: Address) -> bool:
    """Shut a connection down, if the descriptor is still this connection's; returns whether it was."""
    with _closed_meanwhile(), _same_socket(number) as place:
        if _peer_of(place, port) == address:
            with suppress(OSError):  # the peer is gone already
                place.shutdown(socket.SHUT_RDWR)
            return True
    return False
