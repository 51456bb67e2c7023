"""The CA of a deployment: it issues, renews and revokes the certificates of the servers and devices.

The folder of the CA, which stays with the operator:

    authority/ca.pem, ca.key       the CA's certificate and key
    authority/issued/*.pem         every certificate that was ever issued, numbered, so that each can be revoked
    authority/denylist.txt         the serials that were revoked
    NAME/                          the bundle of a server or device: copy this folder there

Keys are written whole, for their owner alone, and shown nowhere.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hsfl.deploy.trust import bundle
from hsfl.deploy.trust.denylist import read_denylist, write_denylist
from hsfl.deploy.trust.identity import SERVERS, Identity, Refused, check_name, host_name, identity_of, role_of, uris
from hsfl.errors import InputError
from hsfl.files import write_atomic, writing
from hsfl.runs.run_folder.folder import LOCK, lock_file

CA_DAYS, DAYS, SOON_DAYS = 3650, 365, 30  # lifetimes of CA and certificate; when a certificate "expires soon"
BACKDATED = timedelta(hours=1)  # clocks of devices differ
NEEDED = "it is needed to revoke"
BUSY = "another hsfl certs is writing to {folder}; wait for it"


@dataclass(frozen=True)
class Issued:
    """A certificate that was issued. current: it is the newest of its name."""

    name: str
    role: str
    serial: int
    valid_from: datetime
    valid_until: datetime
    revoked: bool
    current: bool

    def state(self, moment: datetime) -> str:
        """What an operator wants to know of the certificate, in one or two words."""
        if self.revoked:
            return "revoked"
        if moment > self.valid_until:
            return "expired"
        if not self.current:
            return "replaced"
        return "expires soon" if moment > self.valid_until - timedelta(days=SOON_DAYS) else "valid"


class Authority:
    """The CA in a folder. Make one with `Authority.create`, find it again with `Authority(folder)`."""

    def __init__(self, folder: Path, moment: datetime | None = None) -> None:
        self.folder, self.ca_folder = folder, folder / "authority"
        self.moment = (moment or datetime.now(UTC)).replace(microsecond=0)
        if not (self.ca_folder / bundle.CA).is_file():
            raise InputError(f"{folder} holds no CA; run hsfl certs init --dir {folder}, or give --dir")
        self.certificate = self._read(self.ca_folder / bundle.CA, "without it nothing can be issued")
        if not bundle.is_issued_by(self.certificate, self.certificate):
            raise InputError(f"{self.ca_folder / bundle.CA} is damaged, or of no CA; put a copy of it back")

    @classmethod
    def create(cls, folder: Path, days: int = DAYS, moment: datetime | None = None) -> "Authority":
        """A new CA, and bundles for both servers, valid for so many days. An existing CA is never overwritten."""
        ca_folder = folder / "authority"
        with writing(ca_folder):
            ca_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with lock_file(ca_folder / LOCK, BUSY):
            if (ca_folder / bundle.CA).exists():
                raise InputError(
                    f"{folder} holds a CA already; add devices with hsfl certs add NAME, or choose another --dir"
                )
            start = (moment or datetime.now(UTC)).replace(microsecond=0)
            key = ec.generate_private_key(ec.SECP256R1())
            _write_key(ca_folder / "ca.key", key)
            write_denylist(ca_folder / bundle.DENYLIST, {})
            _write(ca_folder / bundle.CA, _ca_certificate(key, start))  # last: with it the CA is there
        authority = cls(folder, moment)
        for server in SERVERS:
            authority.add(server, days)
        return authority

    def add(self, name: str, days: int = DAYS) -> Issued:
        """A certificate, valid for so many days, and its bundle. A name with a valid certificate is refused."""
        check_name(name)
        with self._locked():
            if any(issued.state(self.moment) in ("valid", "expires soon") for issued in self.certificates_of(name)):
                raise InputError(
                    f"{name} has a certificate; renew it with hsfl certs renew {name}, or choose another name"
                )
            return self._issue(name, days)

    def renew(self, names: list[str], days: int = DAYS) -> list[Issued]:
        """New keys and certificates for these names; without names, for all whose certificate expires soon or has expired."""
        with self._locked():
            if not names:
                names = [
                    issued.name
                    for issued in self.issued()
                    if issued.current and issued.state(self.moment) in ("expires soon", "expired")
                ]
            for name in names:
                if not (newest := [issued for issued in self.certificates_of(name) if issued.current]):
                    raise InputError(f"{name!r} has no certificate to renew; hsfl certs list shows all names")
                if newest[0].revoked:
                    raise InputError(f"{name} was revoked; if it may take part again, run hsfl certs add {name}")
            return [self._issue(name, days) for name in dict.fromkeys(names)]

    def revoke(self, name: str) -> list[Issued]:
        """Put every certificate of this name that could still be used on the denylist, here and in the servers' bundles."""
        with self._locked():
            known = self.certificates_of(name)
            if not known:
                raise InputError(f"{name!r} has no certificate to revoke; hsfl certs list shows all names")
            if not (usable := [issued for issued in known if not issued.revoked and self.moment <= issued.valid_until]):
                raise InputError(f"{name} has no certificate that could still be used; hsfl certs list shows all")
            serials = read_denylist(self.ca_folder / bundle.DENYLIST) | {
                issued.serial: issued.name for issued in usable
            }
            write_denylist(self.ca_folder / bundle.DENYLIST, serials)
            self._share_denylist()
            return usable

    def issued(self) -> list[Issued]:
        """All certificates ever issued: the servers' first, then the clients' by name, the newest of a name first."""
        denied = read_denylist(self.ca_folder / bundle.DENYLIST)
        named = [self._read_record(path) for path in sorted(self._records(), reverse=True)]
        newest = {identity.name: identity.serial for identity, _ in reversed(named)}
        rows = [
            Issued(
                identity.name,
                identity.role,
                identity.serial,
                certificate.not_valid_before_utc,
                certificate.not_valid_after_utc,
                identity.serial in denied,
                newest[identity.name] == identity.serial,
            )
            for identity, certificate in named
        ]
        return sorted(rows, key=lambda row: (row.role == "client", row.name))

    def certificates_of(self, name: str) -> list[Issued]:
        """The certificates of one name."""
        return [issued for issued in self.issued() if issued.name == name]

    def bundle_of(self, name: str) -> Path:
        """The folder that is copied to the device."""
        return self.folder / name

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with lock_file(self.ca_folder / LOCK, BUSY):
            yield

    def _records(self) -> list[Path]:
        return list((self.ca_folder / "issued").glob("*.pem"))

    def _read(self, path: Path, why: str) -> x509.Certificate:
        try:
            return bundle.load_certificates(path.read_bytes())[0]
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error}); put a copy of it back: {why}") from None

    def _read_record(self, path: Path) -> tuple[Identity, x509.Certificate]:
        """A certificate that was issued, and whose it is."""
        certificate = self._read(path, NEEDED)
        try:
            return identity_of(certificate), certificate
        except Refused as refused:
            raise InputError(f"{path} is of no device ({refused.sentence}); put a copy of it back: {NEEDED}") from None

    def _issue(self, name: str, days: int) -> Issued:
        """Issue a certificate and write the bundle. The record comes first: what left this folder can be revoked."""
        ca_key = self._ca_key()
        end = min(self.moment + timedelta(days=days), self.certificate.not_valid_after_utc)
        if end <= self.moment:
            raise InputError(
                f"the CA in {self.folder} expired on {end:%Y-%m-%d}; make a new one with hsfl certs init --dir"
            )
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, key.public_key(), (self.moment, end), self.certificate, ca_key)
        _write(
            self.ca_folder / "issued" / f"{len(self._records()) + 1:06}-{certificate.serial_number:x}.pem", certificate
        )
        place = self.bundle_of(name)
        with writing(place):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(place / bundle.CA, self.certificate)
        _write_key(place / bundle.KEY, key)
        _write(place / bundle.CERTIFICATE, certificate)
        if name in SERVERS:
            self._share_denylist()
        role = role_of(name)
        return Issued(name, role, certificate.serial_number, certificate.not_valid_before_utc, end, False, True)

    def _ca_key(self) -> ec.EllipticCurvePrivateKey:
        path = self.ca_folder / "ca.key"
        try:
            key = bundle.read_key(path, path.read_bytes())
        except OSError as error:
            raise InputError(
                f"{path} cannot be read ({error.strerror}); only who holds the CA's key can issue"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InputError(f"{path} is not the key of an HSFL CA; make one with hsfl certs init --dir")
        if key.public_key() != self.certificate.public_key():
            raise InputError(f"{path} is not the key of {bundle.CA} beside it; put both files of one CA there")
        return key

    def _share_denylist(self) -> None:
        serials = read_denylist(self.ca_folder / bundle.DENYLIST)
        for server in SERVERS:
            if self.bundle_of(server).is_dir():
                write_denylist(self.bundle_of(server) / bundle.DENYLIST, serials)


def _ca_certificate(key: ec.EllipticCurvePrivateKey, moment: datetime) -> x509.Certificate:
    # Each CA has a name of its own: then a certificate of another deployment has an unknown CA, not a bad signature.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"HSFL CA {secrets.token_hex(4)}")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates and CRLs
    public = key.public_key()
    return (
        _builder(name, name, public, moment, moment + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )


def _certificate(
    name: str,
    public: ec.EllipticCurvePublicKey,
    valid: tuple[datetime, datetime],
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    """A device's or a server's certificate. Servers may open connections, too: the main server calls the edge server,
    and `identity_of` refuses every certificate that may not."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris(name)]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if name in SERVERS:
        names.append(x509.DNSName(host_name(name)))
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)  # signs handshakes, no more
    return (
        _builder(subject, ca.subject, public, *valid)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(start - BACKDATED).not_valid_after(end)


def _write(path: Path, certificate: x509.Certificate) -> None:
    pem = certificate.public_bytes(Encoding.PEM)
    write_atomic(path, lambda scratch: scratch.write_bytes(pem), durable=True)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_atomic(path, lambda scratch: scratch.write_bytes(pem), durable=True, mode=0o600)
