"""gRPC without generated code: servers of raw-bytes methods behind the gate (`listen`), and the channels to them (`Peer`).

Also the limits and options that both sides give to gRPC, which answers count as a refusal, and how long to wait before
another attempt (`Backoff`). Who may call is checked in `hsfl.deploy.trust.gate`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from hsfl.deploy.logs import MOST_LINES, LineLimit, Log, scrubbed
from hsfl.deploy.metrics import Metrics
from hsfl.deploy.trust.bundle import DENYLIST
from hsfl.deploy.trust.credentials import add_port, open_channel, plaintext_metadata
from hsfl.deploy.trust.denylist import Denylist
from hsfl.deploy.trust.gate import MOST_CALLS, Gate
from hsfl.deploy.trust.identity import ROLES, Identity, Refused, caller
from hsfl.deploy.wire.connection_limits import ConnectionLimits, ConnectionWatch
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.health import CHECK, WATCH, Health
from hsfl.errors import InputError

MOST_MESSAGE_BYTES = 256 << 20  # gRPC's own limit is 4 MiB, which a batch of smashed data passes
LEAST_MESSAGE_BYTES = 8 << 20  # everybody takes these: a chunk, a probe, a message without tensors are smaller
KEEPALIVE_MS = 20_000  # pings on an idle stream, both ways; a server would answer them with GOAWAY by default
KEEPALIVE_TIMEOUT_MS = 10_000
RECONNECT_MS = (200, 5_000)  # first and longest wait between two attempts of a channel
BACKOFF_S = (0.2, 5.0)  # first and longest wait between two attempts of the client or the main server
MOST_STREAMS = 64  # open at once on one connection; a client needs four, the main server four and its short calls
MOST_NAME_BYTES = (
    256 << 20
)  # of the messages that one name has on their way to a server, while LEAST_CALLS are no more than that
LEAST_CALLS = 8  # of one name, open at once, however long a message may be

_BOTH = [
    ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
    ("grpc.per_message_decompression", 0),  # a length limits what arrived; a few bytes may be unpacked to gigabytes
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_metadata_size", 16 << 10),
]
_SERVER = [
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.max_concurrent_streams", MOST_STREAMS),
    ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a rival
]
_CHANNEL = [
    *_BOTH,
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS[0]),
    ("grpc.min_reconnect_backoff_ms", RECONNECT_MS[0]),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS[1]),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


def _longest_taken(largest_bytes: int) -> int:
    """Bytes of the longest message that a process takes. largest_bytes: of the messages that it is sent."""
    return min(max(largest_bytes, LEAST_MESSAGE_BYTES), MOST_MESSAGE_BYTES)


def server_options(largest_bytes: int) -> list[tuple[str, int]]:
    """gRPC's options for a server. largest_bytes: of the messages that it is sent; a longer message is refused before
    memory is taken for it."""
    return [*_SERVER, ("grpc.max_receive_message_length", _longest_taken(largest_bytes))]


def channel_options(largest_bytes: int = 0) -> list[tuple[str, int]]:
    """gRPC's options for a channel to a server. largest_bytes: of the messages that the server sends; a longer one is refused
    before memory is taken for it."""
    return [*_CHANNEL, ("grpc.max_receive_message_length", _longest_taken(largest_bytes))]


def most_calls(largest_bytes: int) -> int:
    """How many calls one name may have open at a server: every one can hold a message that has arrived in part."""
    return min(max(MOST_NAME_BYTES // _longest_taken(largest_bytes), LEAST_CALLS), MOST_CALLS)


BAD_MESSAGE, BAD_SETTING = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
REPLACED = grpc.StatusCode.ABORTED  # another stream speaks for the client; a client that lives opens a new one
TAKEN = grpc.StatusCode.ALREADY_EXISTS  # another device attends under this name; it may go
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED  # the name has too many calls open, or a message is too long
COME_ANEW = ("replaced", "head_withdrawn")  # reasons of a WireError after which the caller asks anew
REFUSALS = (BAD_MESSAGE, BAD_SETTING, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)


@dataclass(frozen=True)
class ServedMethod:
    """A method of a service: how its messages flow, who may call it, and what is done."""

    flow: str  # unary_unary, stream_unary or stream_stream
    roles: tuple[str, ...]
    handle: Callable[[Any, Any], Any]


class ListeningServer:
    """A server that listens until it is stopped."""

    def __init__(self, server: aio.Server, gate: Gate, health: Health, port: int, connections: ConnectionWatch) -> None:
        self.server, self.health, self.port, self.connections = server, health, port, connections
        self._watching = asyncio.create_task(gate.watch())
        connections.start(port)

    async def stop(self, grace_s: float = 1.0) -> None:
        self.health.set(False)
        self._watching.cancel()
        await self.server.stop(grace_s)
        self.connections.stop()


async def listen(
    address: str,
    service: str,
    methods: dict[str, ServedMethod],
    certs: Path | None,
    log: Log,
    metrics: Metrics,
    largest_bytes: int = 0,
    on_revoked: Callable[[str, str], None] = lambda name, why: None,
    limits: ConnectionLimits | None = None,
) -> ListeningServer:
    """Serve the methods at an address. certs: the folder of the server's certificates; None is plaintext, on loopback.
    largest_bytes: of the largest message that this server is sent. on_revoked: told a revoked caller's name and why. limits: of connections; by
    default those that this process can bear."""

    refusals = LineLimit(log, MOST_LINES)

    def on_refusal(refused: Refused, identity: Identity | None, method: str) -> None:
        who = None if identity is None else identity.name
        refusals.event("caller refused", who, refused.reason, method=method, why=refused.sentence)
        metrics.dropped(refused.reason)
        if who is not None and refused.reason == "revoked":
            on_revoked(who, refused.sentence)

    def on_failure(error: Exception, identity: Identity, method: str) -> None:
        refusals.event("a call failed here", identity.name, type(error).__name__, "error", error=error, method=method)

    health, connections = Health(service), ConnectionWatch(limits or ConnectionLimits.of_process(), log, metrics)
    gate = Gate(
        {f"/{service}/{name}": set(method.roles) for name, method in methods.items()}
        | dict.fromkeys((CHECK, WATCH), ROLES),
        None if certs is None else Denylist(certs / DENYLIST),
        on_refusal,
        on_failure,
        lambda sentence: log.event(sentence, "warning"),
        connections.admit,
        most_calls(largest_bytes),
    )
    options = [*server_options(largest_bytes), *connections.limits.options]
    server = aio.server(interceptors=[gate], options=options)
    handlers = {
        name: getattr(grpc, f"{method.flow}_rpc_method_handler")(_guarded(name, method.handle, refusals))
        for name, method in methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_generic_rpc_handlers(health.handlers())
    port = add_port(server, address, certs, log.event, connections.begin_handshake)
    await server.start()
    health.set(True)
    return ListeningServer(server, gate, health, port, connections)


def _guarded(what: str, handle: Callable[[Any, Any], Any], refusals: LineLimit) -> Callable[[Any, Any], Any]:
    """The handler, in which a refused message ends the call, in words, and never the server."""

    async def guarded(request: Any, context: Any) -> Any:
        try:
            return await handle(request, context)
        except (WireError, InputError) as error:
            reason = getattr(error, "reason", "input")
            refusals.event("message refused", caller().name, reason, method=what, why=str(error))
            code = BAD_SETTING if isinstance(error, InputError) else REPLACED if reason in COME_ANEW else BAD_MESSAGE
            await context.abort(code, scrubbed(str(error)))  # a peer learns no path of this machine

    return guarded


class Peer:
    """A channel to a server's service. server: main or edge. name: the caller's, for plaintext. largest_bytes: of the messages that
    the server sends. Open a new Peer for every connection, so that a renewed certificate is taken up."""

    def __init__(self, address: str, server: str, name: str, certs: Path | None, largest_bytes: int = 0) -> None:
        self._service = f"hsfl.{server.capitalize()}"
        self._metadata = plaintext_metadata(name) if certs is None else ()
        self.channel = open_channel(address, server, certs, channel_options(largest_bytes))

    async def ask(self, method: str, request: bytes, timeout_s: float | None = None) -> bytes:
        """One message there, one back."""
        call = self.channel.unary_unary(f"/{self._service}/{method}")
        return bytes(await call(request, timeout=timeout_s, metadata=self._metadata))

    def stream(self, method: str, timeout_s: float | None = None) -> Any:
        """A stream both ways, to be written to and read from."""
        return self.channel.stream_stream(f"/{self._service}/{method}")(metadata=self._metadata, timeout=timeout_s)

    async def close(self) -> None:
        await self.channel.close()


async def read_message(call: Any) -> bytes:
    """The next message that a server sends on a stream. A stream that has ended is an error with the server's code, or
    UNAVAILABLE where the server gave none."""
    message = await call.read()
    if message is aio.EOF:
        code, details = await call.code(), await call.details()
        if code == grpc.StatusCode.OK:
            code, details = grpc.StatusCode.UNAVAILABLE, "the other side ended the stream early"
        raise aio.AioRpcError(code, await call.initial_metadata(), await call.trailing_metadata(), details)
    return bytes(message)


async def read_request_or_none(context: Any) -> bytes | None:
    """The next message that a caller sends to a handler; None when the caller has ended its side of the stream."""
    message = await context.read()
    return None if message is aio.EOF else bytes(message)


async def read_request(context: Any) -> bytes:
    """The next message that a caller sends to a handler. A stream that ends instead is a WireError."""
    message = await read_request_or_none(context)
    if message is None:
        raise WireError("ended", "the stream ended where a message was expected")
    return message


def is_refusal(error: aio.AioRpcError) -> bool:
    """Whether the other side refuses, so that another attempt would bring the same answer. A lost link is no refusal."""
    return error.code() in REFUSALS


def is_too_long(error: aio.AioRpcError) -> bool:
    """Whether a message was longer than one of the two sides takes. gRPC says so in words alone, which begin with who refuses."""
    return error.code() == FULL and "larger than max" in (error.details() or "")


class Backoff:
    """Waits between attempts, each twice as long as the one before."""

    def __init__(self, first_s: float = BACKOFF_S[0], longest_s: float = BACKOFF_S[1]) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self.reset()

    def reset(self) -> None:
        self._next_s = self._first_s

    async def wait(self) -> None:
        await asyncio.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, self._longest_s)


class Stopped(Exception):
    """The operator ends the server."""


async def unless_stopped(work: Coroutine[Any, Any, None], stopping: asyncio.Event) -> None:
    """Do the work; where the operator ends the server meanwhile, give it up and raise Stopped."""
    working, ending = asyncio.create_task(work), asyncio.create_task(stopping.wait())
    await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if not working.done():
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        raise Stopped
    await working
