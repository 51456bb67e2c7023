"""A peer with a good certificate opens thousands of streams and leaves them, and settings that are refused: no tracebacks, few lines."""

import asyncio
import io
import json
import random
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsfl.deploy.client import ClientProcess
from hsfl.deploy.client_round import Channels
from hsfl.deploy.demo import free_port
from hsfl.deploy.logs import MOST_LINES, MOST_ORDERS, REPEAT_S, LineLimit, open_log
from hsfl.deploy.metrics import Metrics
from hsfl.deploy.processes import serve_edge, serve_main
from hsfl.deploy.settings import ClientSettings, EdgeSettings, MainSettings
from hsfl.deploy.trust.authority import Authority
from hsfl.deploy.wire.client_messages import Benched, Hello, Probe, Stop, Welcome
from hsfl.deploy.wire.link_probe import answer_probe, measure_link
from hsfl.deploy.wire.messages import expect_message, pack_message
from hsfl.deploy.wire.transport import (
    LEAST_CALLS,
    MOST_CALLS,
    MOST_NAME_BYTES,
    Peer,
    ServedMethod,
    is_refusal,
    listen,
    most_calls,
    read_message,
    read_request_or_none,
    server_options,
)
from hsfl.errors import InputError
from tests.deploy.fleet import RUN, changed, fleet
from tests.deploy.inside import Inside
from tests.naming import names, raises

METHODS = ("Fetch", "Upload", "Probe", "Unknown")
HEADERS, RESET, DATA, SETTINGS, WINDOW = 1, 3, 0, 4, 8  # kinds of frames of HTTP/2
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


class HalfSent:
    """A connection with as many calls as it may have, each with the beginning of a long message: as much of `most_bytes` as the server
    lets come. Calls that end are not opened again."""

    def __init__(self, port: int, bundle: Path, num_calls: int, method: str, most_bytes: int) -> None:
        self.place, self.rest, self.room = connection(port, bundle), b"", {0: 65_535}
        self.left = dict.fromkeys(range(1, 2 * num_calls, 2), most_bytes)
        for stream in self.left:
            self.room[stream] = 65_535
            self.place.sendall(frame(HEADERS, END_HEADERS, stream, headers(method)))
            self.place.sendall(frame(DATA, 0, stream, b"\0" + struct.pack(">I", 7 << 20)))
            self.room[0], self.room[stream] = self.room[0] - 5, self.room[stream] - 5

    def send(self, seconds: float) -> None:
        """Send for so long, as the windows of HTTP/2 let it."""
        until_s = time.monotonic() + seconds
        self.place.settimeout(0.02)
        while time.monotonic() < until_s:
            with suppress(TimeoutError):
                self.rest += self.place.recv(1 << 16)
            while len(self.rest) >= 9 and len(self.rest) >= (end := 9 + int.from_bytes(self.rest[:3], "big")):
                self._take(self.rest[3], self.rest[4], int.from_bytes(self.rest[5:9], "big"), self.rest[9:end])
                self.rest = self.rest[end:]
            for stream in list(self.left):
                while (size := min(self.room[0], self.room[stream], self.left[stream], 1 << 14)) > 0:
                    self.place.settimeout(5)
                    self.place.sendall(frame(DATA, 0, stream, bytes(size)))
                    self.place.settimeout(0.02)
                    for numbers, key in ((self.room, 0), (self.room, stream), (self.left, stream)):
                        numbers[key] -= size

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW:
            self.room[stream] = self.room.get(stream, 0) + int.from_bytes(payload, "big")
        elif kind == RESET or flags & END_STREAM:
            self.left.pop(stream, None)


@asynccontextmanager
async def serving(folder: Path, *names: str, largest_bytes: int = 0) -> AsyncIterator[tuple[int, Metrics, io.StringIO]]:
    """An edge server's two ways to be asked, with certificates for these names: its port, its counts and its log."""
    authority = Authority.create(folder / "certs")
    for name in names:
        authority.add(name)

    async def talk(messages: Any, context: Any) -> None:
        while (content := await read_request_or_none(context)) is not None:
            await context.write(content)

    methods = {
        "Probe": ServedMethod("unary_unary", ("client",), answer_probe),
        "Upload": ServedMethod("stream_stream", ("client",), talk),
    }
    stream, metrics = io.StringIO(), Metrics()
    log, certs = open_log("edge", True, stream), folder / "certs" / "edge"
    server = await listen("127.0.0.1:0", "hsfl.Edge", methods, certs, log, metrics, largest_bytes)
    try:
        yield server.port, metrics, stream
    finally:
        await server.stop(0)


def memory_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


@pytest.mark.parametrize("method", ["Probe", "Upload"])
def test_one_name_makes_a_server_hold_few_messages(tmp_path: Path, method: str) -> None:
    """Four connections of 64 calls, each with the first megabyte of a message of seven: gRPC would hold all of them."""

    def flooded(port: int) -> tuple[float, int]:
        before_mb, bundle = memory_mb(), tmp_path / "certs" / "ada"
        connections = [HalfSent(port, bundle, 64, method, 1 << 20) for _ in range(4)]
        until_s = time.monotonic() + 3
        while sum(len(one.left) for one in connections) > MOST_CALLS and time.monotonic() < until_s:
            for one in connections:
                one.send(0.1)
        for one in connections:
            one.send(0.2)
        held = memory_mb() - before_mb, sum(len(one.left) for one in connections)
        for one in connections:
            one.place.close()
        return held

    async def story() -> None:
        async with serving(tmp_path, "ada", "bo") as (port, metrics, stream):
            held_mb, num_open = await asyncio.to_thread(flooded, port)
            assert num_open <= MOST_CALLS
            assert held_mb < 128
            lines = [json.loads(line) for line in stream.getvalue().splitlines()]
            refused = [line for line in lines if line["event"] == "caller refused"]
            assert {(line["client"], line["reason"]) for line in refused} == {("ada", "calls")}
            assert len(refused) <= 2 * MOST_LINES
            names(refused[0]["why"], "ada", f"{MOST_CALLS} calls")
            drops = metrics.registry.get_sample_value("hsfl_drops_total", {"reason": "calls"})
            assert drops == 4 * 64 - MOST_CALLS

    asyncio.run(story())


def test_a_refused_call_is_told_why_and_others_are_not_touched(tmp_path: Path) -> None:
    async def story() -> None:
        async with serving(tmp_path, "ada", "bo", largest_bytes=MOST_NAME_BYTES) as (port, _, _):
            ada, bo = (Peer(f"127.0.0.1:{port}", "edge", name, tmp_path / "certs" / name) for name in ("ada", "bo"))
            calls = [ada.stream("Upload") for _ in range(LEAST_CALLS)]
            for call in calls:
                await call.write(b"hello")
                assert await read_message(call) == b"hello"
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ada.ask("Probe", pack_message(Probe(0)))
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not is_refusal(refused.value)  # a client tries again
            names(refused.value.details(), "ada", f"{LEAST_CALLS} calls", "try again")
            await bo.ask("Probe", pack_message(Probe(0)))
            calls.pop().cancel()
            await asyncio.sleep(0.2)
            await ada.ask("Probe", pack_message(Probe(0)))
            await asyncio.gather(ada.close(), bo.close())

    asyncio.run(story())


@given(st.integers(0, 1 << 40))
def test_calls_of_a_name_are_few_where_messages_are_long(largest_bytes: int) -> None:
    longest = dict(server_options(largest_bytes))["grpc.max_receive_message_length"]
    count = most_calls(largest_bytes)
    assert LEAST_CALLS <= count <= MOST_CALLS
    assert count * longest <= max(MOST_NAME_BYTES, LEAST_CALLS * longest)


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
    log = LineLimit(open_log("main", True, stream), MOST_LINES, lambda: now_s[0])
    for _ in range(1000):
        log.event("message refused", "ada", "ended")
    log.event("message refused", "bo", "ended")
    now_s[0] = REPEAT_S
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


def test_a_main_server_that_says_the_same_ever_again_leaves_few_lines_on_a_device() -> None:
    stream, said = io.StringIO(), iter([pack_message(Benched(2, "why"))] * 5000 + [pack_message(Stop("enough"))])

    class Call:
        async def read(self) -> bytes:
            return next(said)

    device = ClientProcess(ClientSettings(name="ada"), None, open_log("ada", True, stream))
    device.channels = Channels(None, None)
    assert asyncio.run(device._follow_orders(None, Call())) == "enough"
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert MOST_ORDERS <= len(lines) <= 2 * MOST_ORDERS  # a new minute may begin
    assert (lines[0]["event"], lines[0]["rounds"], lines[0]["why"]) == ("benched", 2, "why")


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
