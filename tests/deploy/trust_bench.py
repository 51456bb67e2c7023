"""A CA, certificates that are wrong in one way each, and a server that says who called."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hsfl.deploy.trust.authority import Authority
from hsfl.deploy.trust.credentials import add_port
from hsfl.deploy.trust.denylist import Denylist
from hsfl.deploy.trust.gate import Gate
from hsfl.deploy.trust.identity import caller

CLIENT = (ExtendedKeyUsageOID.CLIENT_AUTH,)
WHO, TALK, WRITE, SUMS = "/t.Main/Who", "/t.Main/Talk", "/t.Main/Write", "/t.Main/Sums"
OPEN = "/t.Main/Unlisted"
ROLES = {WHO: {"client", "edge"}, TALK: {"client"}, WRITE: {"client"}, SUMS: {"edge"}}


def forged(
    folder: Path,
    authority: Authority,
    uris: Sequence[str],
    usages: Sequence[x509.ObjectIdentifier] | None = CLIENT,
    days: tuple[float, float] = (-1, 1),
) -> Path:
    """A bundle with a certificate by this CA that `hsfl certs` would not issue. days: from when to when, counted from now."""
    ca_key = load_pem_private_key((authority.ca_folder / "ca.key").read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "forged")]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris]), False)
    )
    if usages is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
    folder.mkdir(parents=True)
    (folder / "ca.pem").write_bytes((authority.ca_folder / "ca.pem").read_bytes())
    (folder / "cert.pem").write_bytes(builder.sign(ca_key, hashes.SHA256()).public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / "key.pem").chmod(0o600)
    return folder


def raw_channel(port: int, folder: Path) -> grpc.aio.Channel:
    """A channel with whatever the folder holds: what a client does that does not check its own bundle."""
    parts = [(folder / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem")]
    options = [("grpc.ssl_target_name_override", "main.hsfl.internal"), ("grpc.enable_retries", 0)]
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(*parts), options=options)


class Served:
    """A running server: its port, its gate, and what was refused."""

    def __init__(self, denylist: Denylist | None) -> None:
        self.refusals: list[tuple[str, str | None, str]] = []
        self.problems: list[str] = []
        self.failures: list[str] = []
        self.gate = Gate(
            ROLES,
            denylist,
            self._note,
            lambda error, who, method: self.failures.append(str(error)),
            self.problems.append,
        )
        self.port = 0
        self.answering, self.ended = asyncio.Event(), asyncio.Event()  # talk has begun to answer, it has ended

    def _note(self, refused: Any, identity: Any, method: str) -> None:
        self.refusals.append((refused.reason, identity and identity.name, refused.sentence))

    async def who(self, request: bytes, context: Any) -> bytes:
        """Answers the caller's name."""
        if request == b"fail":
            Path("/nowhere/secret").read_bytes()
        if request:
            caller().must_be(request.decode())
        return caller().name.encode()

    async def talk(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Yields back what it gets."""
        try:
            async for request in requests:
                self.answering.set()
                yield request
        finally:
            self.ended.set()

    async def write(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Writes back what it gets. The inner generator is closed here: without `aclosing` the event loop would close it
        some time later, and `ended` could be set after the peer has heard of the end."""
        async with aclosing(self.talk(requests, context)) as answers:
            async for answer in answers:
                await context.write(answer)

    def handlers(self) -> Any:
        """As `grpc.aio.server` takes them."""
        table = {
            "Who": grpc.unary_unary_rpc_method_handler(self.who),
            "Sums": grpc.unary_unary_rpc_method_handler(self.who),
            "Unlisted": grpc.unary_unary_rpc_method_handler(self.who),
            "Talk": grpc.stream_stream_rpc_method_handler(self.talk),
            "Write": grpc.stream_stream_rpc_method_handler(self.write),
        }
        return (grpc.method_handlers_generic_handler("t.Main", table),)


@asynccontextmanager
async def serving(folder: Path | None) -> AsyncIterator[Served]:
    """The main server of the tests, on loopback. folder: its bundle; None: plaintext."""
    served = Served(None if folder is None else Denylist(folder / "denylist.txt"))
    server = grpc.aio.server(interceptors=[served.gate])
    server.add_generic_rpc_handlers(served.handlers())
    served.port = add_port(server, "127.0.0.1:0", folder, lambda words, level: served.problems.append(words))
    await server.start()
    try:
        yield served
    finally:
        await server.stop(0)


async def asked(channel: grpc.aio.Channel, method: str = WHO, request: bytes = b"", **more: Any) -> str:
    """The answer to one call, or the status code and the words of its refusal."""
    try:
        return (await channel.unary_unary(method)(request, timeout=10, **more)).decode()
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, in an event loop of its own and with a time limit."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run
