"""Health as bytes, metrics on loopback, logs that tell nothing of others, and why a server cannot be reached."""

import asyncio
import io
import json
import logging
import shutil
import socket
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from hsfl.deploy.diagnosis import diagnose
from hsfl.deploy.logs import open_log, scrubbed
from hsfl.deploy.metrics import Metrics, serve_metrics
from hsfl.deploy.trust.authority import Authority
from hsfl.deploy.trust.credentials import add_port, open_channel, plaintext_metadata
from hsfl.deploy.trust.gate import Gate
from hsfl.deploy.trust.identity import ROLES
from hsfl.deploy.wire.health import CHECK, NOT_SERVING, SERVING, WATCH, Health, decode_service, encode_status
from hsfl.errors import InputError
from tests.deploy.trust_bench import forged, in_loop, serving
from tests.naming import names, raises

# --- health


def decode_status(message):
    """The status in a HealthCheckResponse; 0 is left out on the wire."""
    assert not message or (len(message) == 2 and message[0] == 0x08)
    return message[1] if message else 0


def encode_service(service):
    """A HealthCheckRequest for a name of at most 127 bytes."""
    return bytes((0x0A, len(service))) + service.encode()


@asynccontextmanager
async def healthy(health):
    """A plaintext server with nothing but its health; a function that calls Check."""
    server = grpc.aio.server(interceptors=[Gate({CHECK: ROLES, WATCH: ROLES}, None)])
    server.add_generic_rpc_handlers(health.handlers())
    port = add_port(server, "127.0.0.1:0", None)
    await server.start()
    async with open_channel(f"127.0.0.1:{port}", "main", None) as channel:
        yield channel
    await server.stop(0)


@in_loop
async def test_health_is_asked_and_watched():
    health = Health("hsfl.Main")
    name = plaintext_metadata("probe")
    async with healthy(health) as channel:
        check = channel.unary_unary(CHECK)
        assert decode_status(await check(b"", metadata=name)) == NOT_SERVING
        watched = channel.unary_stream(WATCH)(encode_service("hsfl.Main"), metadata=name)
        assert decode_status(await watched.read()) == NOT_SERVING
        health.set(True)
        assert decode_status(await watched.read()) == SERVING
        assert decode_status(await check(encode_service("hsfl.Main"), metadata=name)) == SERVING
        health.set(False)
        assert decode_status(await watched.read()) == NOT_SERVING
        watched.cancel()
        for request, code in ((encode_service("other"), "NOT_FOUND"), (b"\x0a\x7fshort", "INVALID_ARGUMENT")):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await check(request, metadata=name)
            assert error.value.code().name == code


def test_health_messages_are_those_of_protobuf():
    """As the protobuf library writes them: field 1 of the request is a string, of the response a number."""
    assert decode_service(b"\n\x09hsfl.Main") == "hsfl.Main"
    long = "a" * 300
    assert decode_service(b"\n\xac\x02" + long.encode()) == long
    assert encode_status(SERVING) == b"\x08\x01"
    for wrong in (b"\x0a", b"\x0a\x05a", b"\x12\x01a", b"\x0a\xff\xff\xff\xff", b"\n\x01\xff", b"\x0a" * 5000):
        with pytest.raises(ValueError):
            decode_service(wrong)


# --- metrics


def test_metrics_are_served_on_loopback():
    metrics = Metrics()
    metrics.clients.set(4)
    metrics.completed(round=7, seconds=2.5)
    metrics.phase("smashed", 0.25)
    metrics.part("swap", 0.5)
    metrics.carried("main_edge", "up", 1000)
    metrics.dropped("revoked")
    metrics.dropped("what a peer said\n# TYPE evil")
    port, end = serve_metrics(metrics, "127.0.0.1:0")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    finally:
        end()
    for line in (
        "hsfl_clients 4.0",
        "hsfl_round 7.0",
        "hsfl_rounds_total 1.0",
        'hsfl_phase_seconds_sum{phase="smashed"} 0.25',
        'hsfl_round_part_seconds_sum{part="swap"} 0.5',
        'hsfl_round_part_seconds_count{part="distribute"} 0.0',
        'hsfl_link_bytes_total{direction="up",link="main_edge"} 1000.0',
        'hsfl_link_bytes_total{direction="down",link="client_edge"} 0.0',
        'hsfl_drops_total{reason="revoked"} 1.0',
        'hsfl_drops_total{reason="other"} 1.0',
    ):
        assert line in lines
    assert not any("evil" in line for line in lines)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0  # it was ended
    with raises(InputError, "whole network"):
        serve_metrics(metrics, "0.0.0.0:0")


# --- logs


def lines_of(write, as_json=True):
    stream = io.StringIO()
    write(open_log("main", as_json, stream))
    return stream.getvalue().splitlines()


def test_an_event_is_one_line_of_json_or_of_words():
    def write(log):
        log.event("client dropped", level="warning", client="ward-1", round=3, reason="late", phase_s=0.5)

    (line,) = lines_of(write)
    told = json.loads(line)
    assert told.pop("time").endswith("Z")
    assert told == {"level": "warning", "server": "main", "event": "client dropped"} | {
        **{"client": "ward-1", "round": 3, "reason": "late", "phase_s": 0.5}
    }
    (words,) = lines_of(write, as_json=False)
    assert words[20:] == "main: warning: client dropped  client=ward-1 round=3 reason=late phase_s=0.5"


def test_a_client_may_be_named_as_its_host():
    host = socket.gethostname()
    (line,) = lines_of(lambda log: log.event("joined", client=host, clients=[host], other=host))
    told = json.loads(line)
    assert (told["client"], told["clients"], told["other"]) == (host, [host], "(host)")


def test_no_line_has_a_path_a_host_a_key_or_a_peers_control_characters(tmp_path):
    key = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqG\n-----END PRIVATE KEY-----"
    host = socket.gethostname()

    def write(log):
        log.event(f"from {tmp_path}/run and ipv4:192.0.2.7:40312", where=tmp_path, key=key, raw=b"secret", host=host)
        log.event(
            "a\x1b[2J\nsecond line",
            more=["C:\\Users\\me\\key.pem", "~/certs/a", "runs/demo/config.json"],
            nan=float("nan"),
        )
        log.event(
            "peer at gateway.example.org:8470", at="[2001:db8::1]:443", url="https://example.org/x", n=float("inf")
        )
        try:
            (tmp_path / "missing.pem").read_bytes()
        except OSError as error:
            log.event("round stopped", level="error", error=error)

    for as_json in (True, False):
        text = "\n".join(lines := lines_of(write, as_json))
        assert len(lines) == 4
        words = (str(tmp_path), "MIGH", "secret", "192.0.2", "\x1b", "Users", "certs/a", "demo", "example.org", "2001")
        for hidden in (*words, "missing.pem", __file__):
            assert hidden not in text, hidden
        assert f'"{host}"' not in text
        assert f"={host}" not in text
        assert "FileNotFoundError" in text


def test_what_libraries_log_goes_the_same_way(tmp_path, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)

    def write(log):
        log.adopt_others()
        try:
            (tmp_path / "missing").read_bytes()
        except OSError:
            logging.getLogger("grpc._cython.cygrpc").exception("failed at %s", tmp_path)

    (line,) = lines_of(write)
    assert str(tmp_path) not in line
    assert json.loads(line)["event"] == "failed at (path)"


@pytest.mark.parametrize(
    "text",
    [
        "ward-1's certificate 3fa9 was revoked",
        "ward-1 has the role client, and /hsfl.Main/Sums is for edge",
        "12.5 samples/s, round 3/10, version 1.2.3, hsfl://client/ward-1, 7 / 2",
    ],
)
def test_ordinary_words_stay(text):
    assert scrubbed(text) == text


# --- why a server cannot be reached


@in_loop
async def test_a_device_hears_why_a_server_cannot_be_reached(tmp_path):
    authority, other = Authority.create(tmp_path / "certs"), Authority.create(tmp_path / "other")
    authority.add("ward-1")
    own = authority.bundle_of("ward-1")
    other.add("ward-1")
    stranger = other.bundle_of("ward-1")
    half = Path(shutil.copytree(stranger, tmp_path / "half"))  # knows the server, shows a certificate of another CA
    shutil.copy(authority.ca_folder / "ca.pem", half / "ca.pem")
    expired = forged(tmp_path / "expired", authority, ("hsfl://client/ward-1", "hsfl://role/client"), days=(-3, -1))

    async def why(port, server, folder):
        try:
            return await asyncio.to_thread(diagnose, f"127.0.0.1:{port}", server, folder, 5.0)
        except InputError as error:
            return f"error: {error}"

    async with serving(authority.bundle_of("main")) as served, serving(None) as plain:
        assert await why(served.port, "main", own) is None
        assert await why(plain.port, "main", None) is None
        cases = {
            (served.port, "main", stranger): ("error: the main server", "another CA", "this device's bundle"),
            (served.port, "main", half): ("does not take", "this device's certificate", "server's bundle"),
            (served.port, "main", expired): ("does not take", "this device's certificate", "ca.pem"),
            (served.port, "edge", own): ("error: the edge server", "is another", "not the edge server's"),
            (plain.port, "main", own): ("main server", "no TLS", "--insecure"),
        }
        for case, parts in cases.items():
            told = str(await why(*case))
            names(told, *parts)
            assert "127.0.0.1" not in told
        port = served.port
    names(str(await why(port, "main", own)), "nothing listens")
