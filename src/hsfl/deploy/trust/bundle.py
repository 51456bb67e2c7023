"""A device's bundle: the folder with its certificate, its private key and the CA's certificate, checked by the device itself.

A gRPC client hears "socket closed" whatever is wrong with its certificate, so a device looks at its own files first.
"""

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from hsfl.deploy.trust.identity import Identity, Refused, identity_of
from hsfl.errors import InputError

CA, CERTIFICATE, KEY, DENYLIST = "ca.pem", "cert.pem", "key.pem", "denylist.txt"  # denylist.txt is on servers alone
MOST_BYTES = 1024 * 1024
COPY = "copy the folder that hsfl certs add wrote for this device"


@dataclass(frozen=True)
class Bundle:
    """What a bundle folder holds. The key shows in no log."""

    identity: Identity
    ca_pem: bytes = field(repr=False)
    certificate_pem: bytes = field(repr=False)
    key_pem: bytes = field(repr=False)


def check_bundle(folder: Path, role: str | None = None, moment: datetime | None = None) -> Bundle:
    """The bundle in a folder. A bundle that cannot be used is an InputError that says what is wrong and what to do.

    role: client, main or edge; None takes any role. moment: when the certificate must be valid, by default this moment."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not there, and a device needs its bundle; {COPY}")
    ca_pem, certificate_pem, key_pem = map(_read, files_in(folder))
    roots = _certificates(folder / CA, ca_pem)
    (certificate, *_) = _certificates(folder / CERTIFICATE, certificate_pem)
    _check_key(folder / KEY, key_pem, certificate)
    _check_issuer(folder, certificate, roots)
    _check_times(folder / CERTIFICATE, certificate, moment or datetime.now(UTC))
    try:
        identity = identity_of(certificate)
    except Refused as refused:
        raise InputError(f"{folder / CERTIFICATE}: {refused.sentence}") from None
    if role is not None and identity.role != role:
        raise InputError(f"{folder} is the bundle of {identity.name} ({identity.role}), not of the role {role}; {COPY}")
    return Bundle(identity, ca_pem, certificate_pem, key_pem)


def files_in(folder: Path) -> tuple[Path, Path, Path]:
    """The files of a bundle: the CA's certificate, the device's certificate, the device's key."""
    return folder / CA, folder / CERTIFICATE, folder / KEY


def without_folder(sentence: str, folder: Path) -> str:
    """The words of an error for a log, which names no folders."""
    return sentence.replace(f"{folder}{os.sep}", "").replace(str(folder), "the bundle")


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is no ordinary file; {COPY}")
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is larger than {MOST_BYTES} bytes and no certificate; {COPY}")
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} is missing; {COPY}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); let the user who runs hsfl read it") from None


def load_certificates(pem: bytes) -> list[x509.Certificate]:
    """The certificates in PEM form. cryptography parses most of a certificate when it is asked for; here all is asked for at once, and
    whatever cannot be parsed is a ValueError."""
    try:
        certificates = x509.load_pem_x509_certificates(pem)
        for certificate in certificates:
            certificate.public_key()
            _ = certificate.subject, certificate.issuer, certificate.extensions
            _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except (
        UnsupportedAlgorithm,
        x509.InvalidVersion,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
    ) as error:
        raise ValueError(str(error)) from None
    return certificates


def _certificates(path: Path, pem: bytes) -> list[x509.Certificate]:
    try:
        return load_certificates(pem)
    except ValueError:
        raise InputError(f"{path} holds no certificate in PEM form; {COPY}") from None


def read_key(path: Path, pem: bytes) -> PrivateKeyTypes:
    """The private key in a file; a key that everybody on the machine can read is refused."""
    if os.name == "posix" and path.stat().st_mode & 0o007:
        raise InputError(f"{path} can be read by every user of this machine; run chmod 600 on it")
    try:
        return load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it is encrypted
        raise InputError(f"{path} holds no private key that can be read without a password; {COPY}") from None


def _check_key(path: Path, pem: bytes, certificate: x509.Certificate) -> None:
    of_key, of_certificate = (
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        for public in (read_key(path, pem).public_key(), certificate.public_key())
    )
    if of_key != of_certificate:
        raise InputError(f"{path} is not the key of {CERTIFICATE} beside it; copy both files from one bundle")


def _check_issuer(folder: Path, certificate: x509.Certificate, roots: list[x509.Certificate]) -> None:
    if not any(is_issued_by(certificate, root) for root in roots):
        raise InputError(f"{folder / CERTIFICATE} was not issued by the CA of {CA} beside it; {COPY}, whole")


def is_issued_by(certificate: x509.Certificate, root: x509.Certificate) -> bool:
    """Whether a certificate has the signature of another one, or its own."""
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _check_times(path: Path, certificate: x509.Certificate, moment: datetime) -> None:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if moment < start:
        raise InputError(
            f"{path} is valid from {start:%Y-%m-%d %H:%M} UTC, and this device's clock says {moment:%Y-%m-%d %H:%M}; set the clock"
        )
    if moment > end:
        raise InputError(
            f"{path} expired on {end:%Y-%m-%d}, and this device's clock says {moment:%Y-%m-%d}; run hsfl certs renew and copy "
            "the bundle here"
        )
