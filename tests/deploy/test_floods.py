"""A peer with a good certificate opens thousands of streams and leaves them, and settings that are refused: no tracebacks, few lines."""

import asyncio
import io
import json
import random
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from hsfl.deploy.logs import open_log
from hsfl.deploy.processes import serve_edge, serve_main
from hsfl.deploy.settings import EdgeSettings, MainSettings
from hsfl.deploy.trust.authority import Authority
from hsfl.deploy.wire.client_messages import Hello, Probe, Welcome
from hsfl.deploy.wire.link_probe import measure_link
from hsfl.deploy.wire.messages import expect_message, pack_message
from hsfl.deploy.wire.refusal_log import MOST_LINES, WINDOW_S, RefusalLog
from hsfl.deploy.wire.transport import Peer, read_message
from hsfl.errors import InputError
from tests.deploy.fleet import RUN, changed, fleet, free_port
from tests.deploy.inside import Inside
from tests.naming import raises

METHODS = ("Fetch", "Upload", "Probe", "Unknown")
HEADERS, RESET, DATA, SETTINGS = 1, 3, 0, 4  # kinds of frames of HTTP/2
END_HEADERS, END_STREAM, ACK = 4, 1, 1  # flags


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def headers(method: str) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "https",
        ":path": f"/hsfl.Edge/{method}",
        ":authority": "edge.hsfl.internal",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        b"\x00" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()
        for name, value in fields.items()
    )


def connection(port: int, bundle: Path) -> ssl.SSLSocket:
    """An HTTP/2 connection with the certificate of a bundle."""
    context = ssl.create_default_context(cafile=str(bundle / "ca.pem"))
    context.check_hostname = False
    context.load_cert_chain(bundle / "cert.pem", bundle / "key.pem")
    context.set_alpn_protocols(["h2"])
    place = context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="edge.hsfl.internal")
    place.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
    return place


def flood(port: int, bundle: Path, num_connections: int, rng: random.Random) -> None:
    """Streams that are opened, filled with this and that, and reset or left."""
    probe = pack_message(Probe(1 << 20))
    asked = b"\0" + struct.pack(">I", len(probe)) + probe
    for _ in range(num_connections):
        place = connection(port, bundle)
        with suppress(OSError):  # the server may end the connection
            for stream in range(1, 401, 2):
                place.sendall(frame(HEADERS, END_HEADERS, stream, headers(rng.choice(METHODS))))
                reset = frame(RESET, 0, stream, struct.pack(">I", 8))
                ends = (
                    reset,
                    frame(DATA, END_STREAM, stream, asked),
                    frame(DATA, 0, stream, asked) + reset,
                    frame(DATA, END_STREAM, stream, asked) + reset,
                    frame(DATA, END_STREAM, stream, b"\7\0\0\0\2hi"),
                    frame(DATA, END_STREAM, stream),
                )
                place.sendall(rng.choice(ends))
        place.close()


@pytest.mark.slow
def test_a_flood_of_streams_leaves_few_lines_and_no_traceback(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "certs")
    for name in ("ada", "bo"):
        authority.add(name)
    with fleet(tmp_path, RUN, certs=tmp_path / "certs") as run:
        run.start("edge")
        run.until_event("edge", "listens")
        flood(run.edge_port, tmp_path / "certs" / "ada", 40, random.Random(0))

        async def honest() -> None:
            peer = Peer(f"127.0.0.1:{run.edge_port}", "edge", "bo", tmp_path / "certs" / "bo")
            await measure_link(peer)
            await peer.close()

        asyncio.run(honest())
        text = run.running["edge"].log.read_text()
        assert run.running["edge"].process.poll() is None
    lines = [json.loads(line) for line in text.splitlines()]  # every line is one of ours
    assert not [line for line in lines if line["level"] == "error"]
    assert len(lines) < 10 * MOST_LINES


def test_refusals_of_one_kind_are_few_lines_a_minute_and_the_rest_is_counted() -> None:
    stream, now_s = io.StringIO(), [0.0]
    log = RefusalLog(open_log("main", True, stream), lambda: now_s[0])
    for _ in range(1000):
        log.event("message refused", "ada", "ended")
    log.event("message refused", "bo", "ended")
    now_s[0] = WINDOW_S
    log.event("message refused", "ada", "ended")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["client"] for line in lines] == ["ada"] * MOST_LINES + ["bo", "ada"]
    assert [line["lines_left_out"] for line in lines if "lines_left_out" in line] == [1000 - MOST_LINES]


def test_a_client_that_joins_and_goes_ever_again_leaves_few_lines(tmp_path: Path) -> None:
    """Without a word that could be refused."""
    inside, times = Inside(tmp_path, changed(RUN, train={"rounds": 1})), MOST_LINES + 5

    async def story() -> None:
        peer = Peer(inside.main, "main", "di", None)
        while not await _is_welcome(peer):
            await asyncio.sleep(0.05)
        for _ in range(times):
            assert await _is_welcome(peer)
        await peer.close()

    async def ended_after(story: Coroutine[Any, Any, None]) -> None:
        servers = asyncio.create_task(inside._all([]))
        await asyncio.wait_for(story, 60)
        servers.cancel()
        await asyncio.gather(servers, return_exceptions=True)

    asyncio.run(ended_after(story()))
    counts = Counter(line["event"] for line in inside.events("main"))
    assert MOST_LINES <= counts["client joins"] <= 2 * MOST_LINES  # a new minute may begin
    assert max(counts.values()) <= 2 * MOST_LINES


async def _is_welcome(peer: Peer) -> bool:
    """Say Hello, and go again."""
    call = peer.stream("Attend")
    try:
        await call.write(pack_message(Hello("di")))
        expect_message(await read_message(call), Welcome)
    except grpc.aio.AioRpcError:
        return False
    finally:
        call.cancel()
    return True


@pytest.mark.parametrize("server", ["main", "edge"])
def test_refused_metrics_leave_nothing_behind(tmp_path: Path, server: str) -> None:
    """Neither a task, whose end asyncio would tell in a traceback, nor a port that is taken."""
    listen, log = f"127.0.0.1:{free_port()}", open_log(server, True, io.StringIO())
    usual = {"listen": listen, "out": str(tmp_path / "out"), "metrics": "0.0.0.0:9433"}

    async def story() -> None:
        before = asyncio.all_tasks()
        with raises(InputError, "metrics", "0.0.0.0:9433", "127.0.0.1:PORT"):
            if server == "main":
                run = {"data": {"name": "digits"}, "model": {"name": "cnn"}}
                await serve_main(MainSettings(run=run, **usual), True, log)
            else:
                await serve_edge(EdgeSettings(**usual), True, log)
        assert asyncio.all_tasks() == before

    asyncio.run(story())
    host, _, port = listen.partition(":")
    with socket.socket() as probe:
        assert probe.connect_ex((host, int(port))) != 0
