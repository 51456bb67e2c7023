"""Who is let in and who is not, over mutual TLS with real servers on loopback; each refusal has its line."""

import asyncio
import shutil
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from hsfl.deploy.trust import gate
from hsfl.deploy.trust.authority import Authority
from hsfl.deploy.trust.credentials import add_port, is_loopback, open_channel, plaintext_metadata
from hsfl.deploy.trust.identity import check_not_expired
from hsfl.errors import InputError
from tests.deploy.trust_bench import OPEN, SUMS, TALK, WHO, WRITE, asked, forged, in_loop, raw_channel, serving
from tests.naming import names, raises

WARD = ("hsfl://client/ward-1", "hsfl://role/client")
CLOSED = "UNAVAILABLE: failed to connect to all addresses"  # what gRPC says, whatever is wrong with a certificate


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CA's folder with the servers and two devices; look, do not touch."""
    folder = tmp_path_factory.mktemp("trust") / "certs"
    authority = Authority.create(folder)
    authority.add("ward-1")
    authority.add("ward-2")
    return folder


@pytest.fixture
def own(certs: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(certs, tmp_path / "own"))


@in_loop
async def test_a_device_with_its_bundle_is_let_in_by_its_name(certs):
    async with serving(certs / "main") as served:
        address = f"127.0.0.1:{served.port}"
        async with open_channel(address, "main", certs / "ward-1") as channel:
            assert await asked(channel) == "ward-1"
            assert await asked(channel, request=b"ward-1") == "ward-1"
        async with open_channel(address, "main", certs / "edge") as channel:
            assert await asked(channel, SUMS) == "edge"
        assert served.refusals == []


@in_loop
async def test_roles_names_and_key_usage_are_checked_in_front_of_every_handler(certs, tmp_path):
    """What TLS lets pass and the gate does not."""
    authority = Authority(certs)
    both = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)
    no_usage = forged(tmp_path / "no-usage", authority, WARD, usages=None)
    no_name = forged(tmp_path / "no-name", authority, ("https://example.org/ward-1",))
    no_role = forged(tmp_path / "no-role", authority, WARD[:1])
    two_names = forged(tmp_path / "two", authority, (*WARD, "hsfl://client/ward-2"))
    raised = forged(tmp_path / "raised", authority, ("hsfl://client/ward-1", "hsfl://role/main"), both)
    path = forged(tmp_path / "path", authority, ("hsfl://client/../../etc", "hsfl://role/client"))
    cases = {
        (no_usage, WHO): ("ward-1's certificate", "extended key usage"),
        (certs / "edge", TALK): ("role edge", "/t.Main/Talk is for client"),
        (certs / "main", WHO): ("role main", "/t.Main/Who", "client or edge"),
        (certs / "ward-1", SUMS): ("ward-1", "role client", "/t.Main/Sums is for edge"),
        (certs / "ward-1", OPEN): ("ward-1", "role client", "/t.Main/Unlisted is for nobody"),
        (no_name, WHO): ("names no device",),
        (no_role, WHO): ("names no device",),
        (two_names, WHO): ("names no device",),
        (raised, WHO): ("name 'hsfl://client/ward-1'", "role disagree"),
        (path, WHO): ("name 'hsfl://client/../../etc'", "role disagree"),
    }
    async with serving(certs / "main") as served:
        for (folder, method), parts in cases.items():
            async with raw_channel(served.port, folder) as channel:
                answer = await asked(channel, method)
                assert answer.startswith("PERMISSION_DENIED: "), (folder.name, method, answer)
                names(answer, *parts)
        async with raw_channel(served.port, certs / "ward-1") as channel:
            answer = await asked(channel, request=b"ward-2")
            assert answer.startswith("PERMISSION_DENIED: 'ward-2' was said, but the certificate is ward-1's")
        assert len(served.refusals) == len(cases) + 1
        assert served.refusals[-1][:2] == ("name", "ward-1")


@in_loop
async def test_what_tls_refuses_the_device_finds_in_its_own_bundle_first(certs, tmp_path):
    authority = Authority(certs)
    other = Authority.create(tmp_path / "other")
    other.add("ward-1")
    expired = forged(tmp_path / "expired", authority, WARD, days=(-3, -1))
    early = forged(tmp_path / "early", authority, WARD, days=(1, 3))
    wrong_ca = Path(shutil.copytree(other.bundle_of("ward-1"), tmp_path / "wrong"))
    shutil.copy(certs / "authority/ca.pem", wrong_ca / "ca.pem")
    mixed = Path(shutil.copytree(certs / "ward-1", tmp_path / "mixed"))
    shutil.copy(certs / "ward-2/key.pem", mixed / "key.pem")
    bare = Path(shutil.copytree(certs / "ward-1", tmp_path / "bare"))
    (bare / "key.pem").unlink()
    cases = {
        expired: ("cert.pem expired on",),
        early: ("cert.pem is valid from",),
        wrong_ca: ("cert.pem was not issued", "CA of ca.pem"),
        mixed: ("key.pem is not the key", "cert.pem"),
        bare: ("key.pem is missing", "hsfl certs add"),
        tmp_path / "nowhere": ("nowhere is not there", "bundle"),
    }
    async with serving(certs / "main") as served:
        address = f"127.0.0.1:{served.port}"
        for folder, parts in cases.items():
            with raises(InputError, *parts):
                open_channel(address, "main", folder)
        for folder in (expired, early, wrong_ca):
            async with raw_channel(served.port, folder) as channel:
                assert (await asked(channel)).startswith(CLOSED), folder.name
        assert served.refusals == []  # none of them reached a handler


@in_loop
async def test_a_clients_certificate_passes_for_no_server(certs):
    """Whoever listens with a device's bundle is not taken for the main server, and neither is the edge server."""
    with raises(InputError, "client ward-2", "main or edge"):
        add_port(grpc.aio.server(), "127.0.0.1:0", certs / "ward-2")
    parts = [(certs / "ward-2" / name).read_bytes() for name in ("key.pem", "cert.pem", "ca.pem")]
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(parts[0], parts[1])], parts[2], True))
    await server.start()
    async with open_channel(f"127.0.0.1:{port}", "main", certs / "ward-1") as channel:
        assert (await asked(channel)).startswith("UNAVAILABLE")
    await server.stop(0)
    async with (
        serving(certs / "edge") as served,
        open_channel(f"127.0.0.1:{served.port}", "main", certs / "ward-1") as ch,
    ):
        assert (await asked(ch)).startswith("UNAVAILABLE")


@in_loop
async def test_a_revoked_serial_ends_open_streams_and_opens_no_new_ones(own):
    async with serving(own / "main") as served:
        address = f"127.0.0.1:{served.port}"
        watching = asyncio.create_task(served.gate.watch(period_s=0.02))
        async with (
            open_channel(address, "main", own / "ward-1") as one,
            open_channel(address, "main", own / "ward-2") as two,
        ):
            streams = [channel.stream_stream(TALK)() for channel in (one, two)]
            for stream in streams:
                await stream.write(b"hello")
                assert await stream.read() == b"hello"
            Authority(own).revoke("ward-1")
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await streams[0].read()
            assert ended.value.code() is grpc.StatusCode.PERMISSION_DENIED
            serial = Authority(own).certificates_of("ward-1")[0].serial
            names(ended.value.details(), "ward-1", f"{serial:x}", "revoked")
            assert served.ended.is_set()  # the handler could tidy up
            assert (await asked(one)).startswith(f"PERMISSION_DENIED: ward-1's certificate {serial:x} was revoked")
            await streams[1].write(b"still here")
            assert await streams[1].read() == b"still here"
            await streams[1].done_writing()
        assert [refusal[:2] for refusal in served.refusals] == [("revoked", "ward-1")] * 2
        watching.cancel()


@in_loop
async def test_an_unreadable_denylist_lets_nobody_back_in(own):
    Authority(own).revoke("ward-1")
    async with serving(own / "main") as served:
        (own / "main/denylist.txt").write_text("no serial, no comment\n")
        async with open_channel(f"127.0.0.1:{served.port}", "main", own / "ward-1") as channel:
            assert "was revoked" in await asked(channel)
            for _ in range(2):
                served.gate.end_refused_calls()
            (problem,) = served.problems  # said once
            assert problem.startswith("the denylist of before stays in force: denylist.txt line 1 is")
    with raises(InputError, "denylist.txt line 1", "'no serial, no comment'"):
        async with serving(own / "main"):
            pass


@in_loop
async def test_a_server_takes_up_a_renewed_certificate_without_a_restart(own):
    """And while the new files are no whole bundle, it goes on with the certificate of before and says so."""
    async with serving(own / "main") as served:
        before = await asyncio.to_thread(served_serial, served.port)
        assert before == Authority(own).certificates_of("main")[0].serial
        Authority(own).renew(["main"])
        assert (
            await asyncio.to_thread(served_serial, served.port)
            == Authority(own).certificates_of("main")[0].serial
            != before
        )
        (own / "main/key.pem").write_bytes((own / "edge/key.pem").read_bytes())  # as in mid-copy
        async with open_channel(f"127.0.0.1:{served.port}", "main", own / "ward-1") as channel:
            assert await asked(channel) == "ward-1"
        (taken, problem) = served.problems
        assert taken == "the renewed certificate is shown from now on"
        assert problem.startswith("the renewed certificate is not used: ")
        names(problem, "key.pem", "cert.pem")
    with raises(InputError, "key.pem", "cert.pem"):
        add_port(grpc.aio.server(), "127.0.0.1:0", own / "main")


def served_serial(port: int) -> int:
    """The serial of the certificate that a server shows now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain, context.wrap_socket(plain) as secure:
        return x509.load_der_x509_certificate(secure.getpeercert(True)).serial_number


@in_loop
async def test_what_goes_wrong_in_a_handler_stays_on_the_server(certs):
    """gRPC by itself sends an exception's words, with the server's paths, to the peer."""
    async with (
        serving(certs / "main") as served,
        open_channel(f"127.0.0.1:{served.port}", "main", certs / "ward-1") as one,
    ):
        assert await asked(one, request=b"fail") == "INTERNAL: the server could not do this; its log says why"
        assert await asked(one) == "ward-1"
        (failure,) = served.failures
        assert "/nowhere/secret" in failure


@in_loop
async def test_a_connection_does_not_outlive_its_certificate(certs, monkeypatch):
    """TLS looks at the dates when a connection is made, and connections last; the peer may come again with a renewed one."""

    def a_year_later(identity):
        check_not_expired(identity, datetime.now(UTC) + timedelta(days=366))

    async with (
        serving(certs / "main") as served,
        open_channel(f"127.0.0.1:{served.port}", "main", certs / "ward-1") as one,
    ):
        stream = one.stream_stream(TALK)()
        await stream.write(b"hello")
        assert await stream.read() == b"hello"
        assert served.gate.end_refused_calls() == 0
        monkeypatch.setattr(gate, "check_not_expired", a_year_later)
        assert served.gate.end_refused_calls() == 1
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stream.read()
        assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await asked(one)).startswith("UNAUTHENTICATED: ward-1's certificate expired on ")


async def read_to_the_end(stream):
    while await stream.read() is not grpc.aio.EOF:
        pass


@pytest.mark.parametrize("method", [TALK, WRITE])
@pytest.mark.parametrize("num_bytes", [5, 3_000_000])  # the larger answer is not written until the peer reads
@in_loop
async def test_a_call_that_is_ended_while_its_first_answer_is_written_hears_why(own, method, num_bytes):
    async with serving(own / "main") as served, open_channel(f"127.0.0.1:{served.port}", "main", own / "ward-1") as one:
        stream = one.stream_stream(method)()
        await stream.write(bytes(num_bytes))
        await served.answering.wait()
        Authority(own).revoke("ward-1")
        assert served.gate.end_refused_calls() == 1
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await read_to_the_end(stream)
        assert ended.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert [reason for reason, _, _ in served.refusals] == ["revoked"]
        assert served.ended.is_set()


@in_loop
async def test_without_a_certificate_nothing_is_heard(certs):
    credentials = grpc.ssl_channel_credentials((certs / "ward-1/ca.pem").read_bytes())
    options = [("grpc.ssl_target_name_override", "main.hsfl.internal")]
    async with serving(certs / "main") as served:
        async with grpc.aio.secure_channel(f"127.0.0.1:{served.port}", credentials, options=options) as channel:
            assert (await asked(channel)).startswith(CLOSED)
        assert served.refusals == []


@in_loop
async def test_plaintext_stays_on_this_machine(certs):
    for address in ("0.0.0.0:0", "[::]:0", "192.0.2.7:8470", "example.org:8470", "127.0.0.1.example.org:8470"):
        for use in (lambda at: add_port(grpc.aio.server(), at, None), lambda at: open_channel(at, "main", None)):
            with raises(InputError, "plaintext", "this machine", address):
                use(address)
    assert is_loopback("[::1]:8470")
    assert is_loopback("localhost:8470")
    async with serving(None) as served, open_channel(f"127.0.0.1:{served.port}", "main", None) as channel:
        assert await asked(channel, metadata=plaintext_metadata("ward-1")) == "ward-1"
        assert (await asked(channel)).startswith("PERMISSION_DENIED: the call does not say whose it is")
        names(await asked(channel, SUMS, metadata=plaintext_metadata("ward-1")), "for edge")
        with raises(InputError, "../ward"):
            plaintext_metadata("../ward")


@in_loop
async def test_plaintext_to_a_tls_server_gets_nowhere(certs):
    async with serving(certs / "main") as served, open_channel(f"127.0.0.1:{served.port}", "main", None) as channel:
        assert (await asked(channel, metadata=plaintext_metadata("ward-1"))).startswith("UNAVAILABLE")
        assert served.refusals == []
