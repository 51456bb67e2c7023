"""TLS for servers and channels, from a bundle folder. Without a bundle they speak plaintext, on loopback alone.

server.add_secure_port / add_insecure_port  ->  add_port(server, address, folder)
grpc.aio.secure_channel / insecure_channel  ->  open_channel(address, "main", folder)
"""

import ipaddress
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from hsfl.deploy.trust.bundle import Bundle, check_bundle, files_in, without_folder
from hsfl.deploy.trust.identity import NAME_HEADER, check_name, host_name
from hsfl.errors import InputError
from hsfl.files import stamp

Options = Sequence[tuple[str, Any]]
Tell = Callable[[str, str], None]  # words for the log, and their level


def is_loopback(address: str) -> bool:
    """Whether an address such as 127.0.0.1:8470, [::1]:8470 or localhost:8470 stays on this machine."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def _check_plaintext(address: str) -> None:
    """Refuse to speak without TLS to anything but this machine."""
    if not is_loopback(address):
        raise InputError(
            f"plaintext is for this machine alone, and {address} is not on it; use 127.0.0.1:PORT, or a bundle in place of "
            "--insecure"
        )


def add_port(
    server: grpc.aio.Server,
    address: str,
    folder: Path | None,
    tell: Tell = lambda sentence, level: None,
    on_handshake: Callable[[], None] = lambda: None,
) -> int:
    """Let a server listen at an address (host:port), with the bundle in a folder (None: plaintext, loopback alone);
    returns the port. tell: hears of each change of the bundle's files, whether the new bundle is used or cannot be.
    on_handshake: called, from any thread, where a TLS handshake begins."""
    credentials = None if folder is None else _server_credentials(folder, tell, on_handshake)
    if credentials is None:
        _check_plaintext(address)
    try:
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise InputError(f"nothing can listen at {address}; is another server running there?")
    return int(port)


def _server_credentials(
    folder: Path, tell: Tell = lambda sentence, level: None, on_handshake: Callable[[], None] = lambda: None
) -> grpc.ServerCredentials:
    """Mutual TLS for a server. Every new connection gets the certificate that is in the folder then, so that a renewed one is
    taken up without a restart; while the new files are no whole bundle, the certificate of before stays."""
    renewals = _Renewals(folder, tell, on_handshake)
    return grpc.dynamic_ssl_server_credentials(
        _configuration(renewals.bundle), renewals.fetch, require_client_authentication=True
    )


class _Renewals:
    """Looks at a server's bundle when a connection is made. gRPC calls `fetch` from threads of its own."""

    def __init__(self, folder: Path, tell: Tell, on_handshake: Callable[[], None]) -> None:
        self._folder, self._tell, self._on_handshake = folder, tell, on_handshake
        self._seen = stamp(*files_in(folder))
        self.bundle = _server_bundle(folder)

    def fetch(self) -> Any:
        """A new configuration, or None to stay with the one in use. An exception here would refuse the connection."""
        self._on_handshake()
        seen = stamp(*files_in(self._folder))
        if seen == self._seen:
            return None
        self._seen = seen
        try:
            bundle = check_bundle(self._folder, role=self.bundle.identity.role)
        except InputError as error:
            self._tell(f"the renewed certificate is not used: {without_folder(str(error), self._folder)}", "warning")
            return None
        self.bundle = bundle
        self._tell("the renewed certificate is shown from now on", "info")
        return _configuration(bundle)


def _server_bundle(folder: Path) -> Bundle:
    bundle = check_bundle(folder)
    if bundle.identity.role == "client":
        raise InputError(f"{folder} is the bundle of the client {bundle.identity.name}; a server needs main or edge")
    return bundle


def _configuration(bundle: Bundle) -> Any:
    pair = (bundle.key_pem, bundle.certificate_pem)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=bundle.ca_pem)


def open_channel(address: str, server: str, folder: Path | None, options: Options = ()) -> grpc.aio.Channel:
    """A channel to a server (main or edge) with the bundle in a folder (None: plaintext, loopback alone). The bundle is
    checked and read now, so that a renewed certificate needs a new channel."""
    if folder is None:
        _check_plaintext(address)
        return grpc.aio.insecure_channel(address, options=list(options))
    bundle = check_bundle(folder)
    credentials = grpc.ssl_channel_credentials(bundle.ca_pem, bundle.key_pem, bundle.certificate_pem)
    named = [*options, ("grpc.ssl_target_name_override", host_name(server))]
    return grpc.aio.secure_channel(address, credentials, options=named)


def plaintext_metadata(name: str) -> tuple[tuple[str, str], ...]:
    """What every call sends without TLS, so that the server knows who calls."""
    return ((NAME_HEADER, check_name(name)),)
