"""Connections without a name are few and short, and the oldest of them go first; those with a name are few for each name."""

import asyncio
import io
import os
import socket
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.deploy.logs import open_log
from hsfl.deploy.metrics import Metrics
from hsfl.deploy.trust.authority import Authority
from hsfl.deploy.trust.credentials import open_channel
from hsfl.deploy.wire import connection_limits
from hsfl.deploy.wire.connection_limits import (
    SCAN_S,
    Connection,
    ConnectionLimits,
    ConnectionWatch,
    excess_connections,
    peer_address,
)
from hsfl.deploy.wire.transport import ServedMethod, listen
from tests.deploy.flood import STRANGER, HalfOpen
from tests.deploy.trust_bench import asked, in_loop

LIMITS = ConnectionLimits(100, unnamed=6, unnamed_of_address=3, of_name=2, unnamed_s=10.0)

connection = st.builds(
    lambda host, port, since_s, name: Connection((f"10.0.0.{host}", port), since_s, name),
    st.integers(1, 4),
    st.integers(1, 60_000),
    st.integers(0, 20).map(float),
    st.sampled_from([None, None, "ada", "bo"]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(connection, max_size=40, unique_by=lambda connection: connection.address))
def test_what_is_left_is_within_the_limits_and_no_more_than_needed_goes(connections: list[Connection]) -> None:
    reasons = excess_connections(connections, LIMITS, 20.0)
    left = [connection for connection in connections if connection.address not in reasons]
    unnamed = [connection for connection in left if connection.name is None]
    by_address, by_name = Counter(c.address[0] for c in unnamed), Counter(c.name for c in left if c.name)
    assert all(20.0 - connection.since_s <= LIMITS.unnamed_s for connection in unnamed)
    assert len(unnamed) <= LIMITS.unnamed
    assert max(by_address.values(), default=0) <= LIMITS.unnamed_of_address
    assert max(by_name.values(), default=0) <= LIMITS.of_name
    for gone in (connection for connection in connections if connection.address in reasons):
        reason = reasons[gone.address]
        rivals = {
            "deadline": [],
            "name": [c for c in left if c.name == gone.name],
            "address": [c for c in connections if c.name is None and c.address[0] == gone.address[0]],
            "crowd": unnamed,
        }[reason]
        assert (reason == "name") == (gone.name is not None)
        if reason == "deadline":
            assert 20.0 - gone.since_s > LIMITS.unnamed_s
        elif reason == "name":
            assert len(rivals) == LIMITS.of_name
            assert min(rival.since_s for rival in rivals) >= gone.since_s  # the oldest go first
        elif reason == "address":
            assert len(rivals) > LIMITS.unnamed_of_address
        else:
            assert len(rivals) == LIMITS.unnamed
            assert min(rival.since_s for rival in rivals) >= gone.since_s


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:51234", ("10.0.0.7", 51234)),
        ("ipv6:%5B::1%5D:443", ("::1", 443)),
        ("ipv6:[::ffff:10.0.0.7]:9", ("10.0.0.7", 9)),
        ("ipv6:%5Bfe80::1%25eth0%5D:9", ("fe80::1", 9)),
        ("unix:/run/x", None),
    ],
)
def test_a_peer_has_one_address_however_it_is_written(peer: str, address: object) -> None:
    assert peer_address(peer) == address


def test_a_process_keeps_descriptors_for_its_own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for most, in_all in ((1024, 768), (256, 128), (65_536, 4096)):
        monkeypatch.setattr(connection_limits, "raise_descriptor_limit", lambda most=most: most)
        limits = ConnectionLimits.of_process()
        assert limits.in_all == in_all
        assert limits.unnamed <= in_all // 2


async def who(request: bytes, context: object) -> bytes:
    return b"here"


METHODS = {"Ask": ServedMethod("unary_unary", ("client",), who)}


@in_loop
async def test_strangers_are_shut_out_and_honest_callers_stay(tmp_path: Path) -> None:
    """From outside: raw sockets that say nothing, and a client with a certificate before, while and after they are there."""
    authority, stream, metrics = Authority.create(tmp_path / "certs"), io.StringIO(), Metrics()
    authority.add("ada")
    limits = ConnectionLimits(40, unnamed=20, unnamed_of_address=8, of_name=4, unnamed_s=1.5)
    served = await listen(
        "127.0.0.1:0",
        "t.Main",
        METHODS,
        authority.bundle_of("main"),
        open_log("main", True, stream),
        metrics,
        limits=limits,
    )
    bundle = authority.bundle_of("ada")
    try:
        async with open_channel(f"127.0.0.1:{served.port}", "main", bundle) as early:
            assert await asked(early, "/t.Main/Ask") == "here"
            strangers = await asyncio.to_thread(HalfOpen, served.port, 60)
            strangers.ending.set()  # those that are closed are not opened again
            for _ in range(200):
                if strangers.num_open() <= limits.unnamed_of_address:
                    break
                await asyncio.sleep(SCAN_S / 5)
            assert strangers.num_open() <= limits.unnamed_of_address
            assert await asked(early, "/t.Main/Ask") == "here"
            async with open_channel(f"127.0.0.1:{served.port}", "main", bundle) as late:
                assert await asked(late, "/t.Main/Ask") == "here"
            for _ in range(200):
                if not strangers.num_open():
                    break
                await asyncio.sleep(SCAN_S / 5)
            assert not strangers.num_open(), "none may stay without a name"
            assert await asked(early, "/t.Main/Ask") == "here"
            strangers.close()
    finally:
        await served.stop(0)
    assert '"connections refused"' in stream.getvalue()
    assert "127.0.0" not in stream.getvalue()
    samples = {
        sample.labels["reason"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "hsfl_refused_connections_total"
    }
    assert samples["address"] >= 20
    assert samples["deadline"] + samples["no_call"] >= 8
    assert samples["name"] == 0


def test_a_descriptor_that_is_another_ones_by_now_is_left_alone() -> None:
    """gRPC may close a connection, and its number may be a file of ours, before the watch comes to it."""
    with ExitStack() as stack:
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = door.getsockname()[1]
        stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=(STRANGER, 0)))
        accepted = stack.enter_context(door.accept()[0])
        address = accepted.getpeername()[:2]
        with open(os.devnull) as file:
            assert not connection_limits._shut_down(file.fileno(), port, address)
        assert not connection_limits._shut_down(door.fileno(), port, address)
        assert not connection_limits._shut_down(accepted.fileno(), port, (STRANGER, 1))
        assert connection_limits._shut_down(accepted.fileno(), port, address)
        assert accepted.recv(10) == b""


def test_a_name_given_before_the_watch_has_seen_the_connection_stays() -> None:
    """A call may be admitted between the moment when the descriptors are listed and the moment when the names are read."""
    watch = ConnectionWatch(LIMITS, open_log("main", True, io.StringIO()), Metrics())
    with socket.create_server(("127.0.0.1", 0)) as door:
        watch.port = door.getsockname()[1]
        with socket.create_connection(("127.0.0.1", watch.port)) as client:
            host, port = client.getsockname()
            watch.admit(f"ipv4:{host}:{port}", "ada")
            watch.look(time.monotonic())
            with door.accept()[0]:
                watch.look(time.monotonic())
                assert watch.connections[host, port].name == "ada"
        for _ in range(2):
            watch.look(time.monotonic())
        assert not watch.connections
        assert not watch._named


def test_a_probe_holds_back_no_warning() -> None:
    """A connection that was no more than a probe is told; a flood in the same minute is told, too, and then once a minute."""
    stream = io.StringIO()
    watch = ConnectionWatch(LIMITS, open_log("main", True, stream), Metrics())
    told = []
    for now_s, reason in (
        (100.0, "no_call"),
        (101.0, "no_call"),
        (102.0, "address"),
        (103.0, "address"),
        (163.0, "address"),
    ):
        watch._refuse(reason)
        watch._log_refused(now_s)
        told.append(stream.getvalue().count("connections refused"))
    assert told == [1, 1, 2, 2, 3]
