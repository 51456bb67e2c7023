"""Holds every byte back for a while, each way: a delay where the kernel has no netem.

    python relay.py HUB '[{"namespace": "...", "port": 7433, "target": ["10.77.0.2", 7433], "delay_s": 0.005}, ...]'

One process serves all devices. A socket belongs to the network namespace in which it was opened, so a device connects to 127.0.0.1 in its own
namespace, and the bytes go on over its own link. TCP sees two short links: windows and retransmissions feel nothing of the delay.
"""

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from enter import end_with_parent, join_namespace

PIECE_BYTES = 1 << 16
MOST_PIECES = 64  # that are held back in one direction of a connection


def open_socket(namespace: str, hub: str) -> socket.socket:
    join_namespace(namespace)
    try:
        return socket.socket()
    finally:
        join_namespace(hub)


async def hold_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Carry one direction of a connection to its end."""
    clock_s = asyncio.get_running_loop().time
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MOST_PIECES)

    async def take() -> None:
        piece = b"-"
        while piece:
            piece = await reader.read(PIECE_BYTES)
            await held.put((clock_s() + delay_s, piece))

    async def give() -> None:
        while True:
            due_s, piece = await held.get()
            await asyncio.sleep(due_s - clock_s())
            if not piece:
                return writer.write_eof()
            writer.write(piece)
            await writer.drain()

    await asyncio.gather(take(), give())


def carry_connection(rule: dict[str, Any], hub: str) -> Callable[..., Any]:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = open_socket(rule["namespace"], hub)
        onward.setblocking(False)
        other = None
        try:
            await asyncio.get_running_loop().sock_connect(onward, tuple(rule["target"]))
            other_reader, other = await asyncio.open_connection(sock=onward)
            for end in (writer, other):
                end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.gather(
                hold_back(reader, other, rule["delay_s"]), hold_back(other_reader, writer, rule["delay_s"])
            )
        except OSError:
            pass  # nobody listens yet, or an end was lost: the other end sees it too
        finally:
            onward.close() if other is None else other.close()
            with suppress(OSError):
                writer.close()

    return carry


async def serve(hub: str, rules: list[dict[str, Any]]) -> None:
    servers = []
    for rule in rules:
        door = open_socket(rule["namespace"], hub)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(("127.0.0.1", rule["port"]))
        servers.append(await asyncio.start_server(carry_connection(rule, hub), sock=door))
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    end_with_parent()
    join_namespace(sys.argv[1])
    asyncio.run(serve(sys.argv[1], json.loads(sys.argv[2])))
