"""Who a peer is, by its certificate: a name and a role as URIs, and what the key may be used for.

A client named ward-1 carries `hsfl://client/ward-1` and `hsfl://role/client`; the main server carries `hsfl://server/main` and
`hsfl://role/main`, the edge server likewise. A certificate counts only when both URIs are there and agree.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from hsfl.errors import InputError

SERVERS = ("main", "edge")
ROLES = ("client", *SERVERS)
NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")  # also a folder's name: no separator, no leading dot
RESERVED = ("authority",)  # the folder of the CA
MOST_PEM_BYTES = 16 * 1024
NAME_HEADER = "hsfl-name"  # says who calls where there is no certificate: without TLS, on loopback


class Refused(Exception):
    """A peer that is not let in, or is sent away. reason: one word for logs and metrics; the text is for people."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence


@dataclass(frozen=True)
class Identity:
    """Who a peer is. serial, valid_until: of the peer's certificate; 0 and None without TLS."""

    name: str
    role: str
    serial: int
    valid_until: datetime | None = None

    def must_be(self, name: str) -> None:
        """Refuse a peer that speaks for another name than its certificate's."""
        if name != self.name:
            raise Refused("name", f"{_shown(name)} was said, but the certificate is {self.name}'s; use its own bundle")


_CALLER: ContextVar[Identity] = ContextVar("hsfl_caller")


def caller() -> Identity:
    """Who calls the handler that runs now; hsfl.deploy.trust.gate has checked it."""
    return _CALLER.get()


def set_caller(identity: Identity) -> None:
    """Tell the handler of this call who calls."""
    _CALLER.set(identity)


def check_name(name: str) -> str:
    """The name, if a device or a server may have it: it becomes a part of URIs, of a folder's name and of log lines."""
    if not NAME.fullmatch(name) or name in RESERVED:
        raise InputError(
            f"the name {_shown(name)} cannot be used; take up to 63 small letters, digits, dots, - and _, such as ward-1, "
            f"and not {RESERVED[0]}"
        )
    return name


def role_of(name: str) -> str:
    """main and edge are the servers; every other name is a client's."""
    return name if name in SERVERS else "client"


def host_name(server: str) -> str:
    """The name that a server's certificate carries for TLS. Clients ask for it, whatever address they dial: a server may move
    to another address with its certificate, and no client's certificate passes for a server's."""
    return f"{server}.hsfl.internal"


def uris(name: str) -> tuple[str, str]:
    """The name and the role as URIs."""
    role = role_of(name)
    return f"hsfl://{'client' if role == 'client' else 'server'}/{name}", f"hsfl://role/{role}"


def named_by(certificate_uris: Iterable[str]) -> tuple[str, str]:
    """Name and role, from all URIs of a certificate."""
    hsfl_uris = sorted(uri for uri in certificate_uris if uri.startswith("hsfl://"))
    names = [uri for uri in hsfl_uris if not uri.startswith("hsfl://role/")]
    if len(hsfl_uris) != 2 or len(names) != 1:
        raise Refused("name", "the certificate names no device of HSFL; make one with hsfl certs add NAME")
    name = names[0].rpartition("/")[2]
    if not NAME.fullmatch(name) or name in RESERVED or sorted(uris(name)) != hsfl_uris:
        raise Refused(
            "name", f"the certificate's name {_shown(names[0])} and role disagree; make one with hsfl certs add"
        )
    return name, role_of(name)


def identity_of(certificate: x509.Certificate) -> Identity:
    """Who a certificate is for. A certificate that may not open connections is refused here, since gRPC takes a
    certificate that does not say what it is for."""
    name, role = named_by(_uris_in(certificate))
    usages = _usages(certificate)
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usages:
        lacks = "does not say what it is for" if not usages else "is not for opening connections"
        raise Refused("key_usage", f"{name}'s certificate {lacks} (extended key usage); make one with hsfl certs add")
    return Identity(name, role, certificate.serial_number, certificate.not_valid_after_utc)


def _uris_in(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _usages(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    try:
        return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return []


@lru_cache(maxsize=1024)  # a client's calls all show the same certificate
def _identity_of_pem(pem: bytes) -> Identity:
    try:
        return identity_of(x509.load_pem_x509_certificate(pem))
    except ValueError:
        raise Refused("certificate", "the certificate cannot be read; make one with hsfl certs add NAME") from None


def from_auth_context(auth: Mapping[str, Any], moment: datetime | None = None) -> Identity:
    """Who is at the other end of a TLS connection, from gRPC's `context.auth_context()`. TLS has checked the CA's signature
    when the connection was made. The certificate may have expired since then, so its last day is checked again."""
    pems: list[bytes] = list(auth.get("x509_pem_cert") or [])
    if len(pems) != 1 or b"".join(auth.get("transport_security_type") or ()) != b"ssl":
        raise Refused("certificate", "no certificate was shown; start the client with its bundle")
    if len(pems[0]) > MOST_PEM_BYTES:
        raise Refused("certificate", f"the certificate has {len(pems[0])} bytes; at most {MOST_PEM_BYTES} are read")
    identity = _identity_of_pem(pems[0])
    check_not_expired(identity, moment)
    return identity


def check_not_expired(identity: Identity, moment: datetime | None = None) -> None:
    """Refuse a certificate that has expired."""
    if identity.valid_until is not None and (moment or datetime.now(UTC)) > identity.valid_until:
        raise Refused(
            "expired",
            f"{identity.name}'s certificate expired on {identity.valid_until:%Y-%m-%d}; run hsfl certs renew {identity.name}",
        )


def from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> Identity:
    """Who a peer says it is, where there is no TLS; for loopback alone."""
    claimed = [value for key, value in metadata if key == NAME_HEADER]
    if len(claimed) != 1 or not isinstance(claimed[0], str) or not NAME.fullmatch(claimed[0]) or claimed[0] in RESERVED:
        raise Refused("name", f"the call does not say whose it is; send one header {NAME_HEADER} with a name")
    return Identity(claimed[0], role_of(claimed[0]), 0)


def check_role(identity: Identity, roles: Collection[str], what: str) -> None:
    """Refuse a peer whose role is not among `roles`. what: the method that it calls, for the words."""
    if identity.role not in roles:
        allowed = " or ".join(sorted(roles)) or "nobody"
        raise Refused("role", f"{identity.name} has the role {identity.role}, and {what} is for {allowed}")


def _shown(text: str) -> str:
    """A peer's words for a log line: printable, short, in quotes."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")
