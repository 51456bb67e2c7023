"""gRPC's health method (grpc.health.v1), which load balancers, systemd probes and `grpc_health_probe` ask.

Its two messages have one field each, so they are read and written as bytes here: no protobuf, whose versions others pin.

    HealthCheckRequest   field 1, a string: the service, empty for the whole server
    HealthCheckResponse  field 1, a number: 0 unknown, 1 serving, 2 not serving, 3 no such service
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

SERVICE = "grpc.health.v1.Health"
CHECK, WATCH = f"/{SERVICE}/Check", f"/{SERVICE}/Watch"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
MOST_BYTES = 1024  # of a request
STRING_FIELD, NUMBER_FIELD = 0x0A, 0x08  # field 1, as a string and as a number


def encode_status(status: int) -> bytes:
    """A HealthCheckResponse."""
    return bytes((NUMBER_FIELD, status))


def decode_service(message: bytes) -> str:
    """The service in a HealthCheckRequest. ValueError for anything else."""
    if not message:
        return ""
    if len(message) > MOST_BYTES or message[0] != STRING_FIELD:
        raise ValueError("no HealthCheckRequest")
    length = shift = 0
    for place, byte in enumerate(message[1:4], start=2):  # a number of 7 bits a byte, the lowest first
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            name = message[place:]
            break
    else:
        raise ValueError("no HealthCheckRequest")
    if len(name) != length:
        raise ValueError("no HealthCheckRequest")
    return name.decode()  # UnicodeDecodeError is a ValueError


class Health:
    """The health of one server. service: its name, such as hsfl.Main; the empty name asks for the whole server."""

    def __init__(self, service: str) -> None:
        self._services = ("", service)
        self._serving = False
        self._changed = asyncio.Event()

    def set(self, serving: bool) -> None:
        """Say whether the server takes calls: true once it listens, false when it shuts down."""
        self._serving = serving
        self._changed.set()
        self._changed = asyncio.Event()  # whoever waits has the old one, which is set

    def handlers(self) -> Any:
        """For `server.add_generic_rpc_handlers`; let the gate admit CHECK and WATCH for every role."""
        table = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        return (grpc.method_handlers_generic_handler(SERVICE, table),)

    def _status(self, service: str) -> int:
        if service not in self._services:
            return SERVICE_UNKNOWN
        return SERVING if self._serving else NOT_SERVING

    async def _asked_service(self, request: bytes, context: Any) -> str:
        try:
            return decode_service(request)
        except ValueError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is no HealthCheckRequest")
            raise  # not reached: to abort is to raise

    async def _check(self, request: bytes, context: Any) -> bytes:
        service = await self._asked_service(request, context)
        if (status := self._status(service)) == SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {service[:80]!a} here")
        return encode_status(status)

    async def _watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """The status now, and again whenever it changes."""
        service = await self._asked_service(request, context)
        last_status = None
        while True:
            changed = self._changed
            if (status := self._status(service)) != last_status:
                yield encode_status(status)
                last_status = status
            await changed.wait()
