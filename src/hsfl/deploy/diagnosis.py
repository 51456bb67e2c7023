"""Why a server cannot be reached, in words. To a gRPC client almost everything is "socket closed"; one TLS handshake
beside the gRPC channel tells who objects to whose certificate."""

import socket
import ssl
from pathlib import Path

from hsfl.deploy.trust.bundle import CA, files_in
from hsfl.deploy.trust.identity import host_name
from hsfl.errors import InputError

EXPIRED, NOT_YET_VALID = 10, 9  # verify codes of X.509
OTHER_NAME = (62, 63, 64)  # likewise: the certificate is for another name


def diagnose(address: str, server: str, folder: Path | None, timeout_s: float = 5.0) -> str | None:
    """What is wrong between this device and a server, in words that name no address, for a log; None if all is well.

    server: main or edge. folder: the device's bundle, which `check_bundle` found whole; None for plaintext. A server whose
    certificate cannot be trusted is an InputError: to try again would find the same. Connecting, the handshake and the
    server's greeting may block for `timeout_s` each, so call this in a thread."""
    there = f"the address of the {server} server ({server} in this client's file)"
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as plain:
            return None if folder is None else _tls_problem(plain, server, folder)
    except InputError:
        raise
    except TimeoutError:
        return f"{there} does not answer within {timeout_s:g} s; is it right, and no firewall between?"
    except ConnectionRefusedError:
        return f"nothing listens at {there}; is the server running?"
    except (OSError, ValueError) as error:
        return f"{there} cannot be reached ({getattr(error, 'strerror', None) or error}); is it right?"


def _tls_problem(plain: socket.socket, server: str, folder: Path) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    roots, certificate, key = files_in(folder)
    context.load_verify_locations(roots)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    try:
        secure = context.wrap_socket(plain, server_hostname=host_name(server), suppress_ragged_eofs=False)
    except ssl.SSLCertVerificationError as error:
        raise InputError(f"the {server} server {_of_server(error.verify_code, server)}") from None
    except (ssl.SSLError, ConnectionResetError):
        return f"the {server} server speaks no TLS; was it started with --insecure, is it the right port?"
    try:
        with secure:
            secure.recv(
                1
            )  # the server's greeting; with TLS 1.3 it looks at our certificate after our handshake has ended
    except (ssl.SSLError, ConnectionResetError):  # gRPC closes the connection and sends no alert that says why
        return (
            f"the {server} server does not take this device's certificate; is ca.pem in the server's bundle the "
            "same as here, is the server's clock right?"
        )
    return None


def _of_server(verify_code: int, server: str) -> str:
    if verify_code in OTHER_NAME:
        return f"is another: its certificate is not the {server} server's; are the addresses of the servers exchanged?"
    if verify_code == EXPIRED:
        return f"has an expired certificate; run hsfl certs renew {server} and copy the bundle there"
    if verify_code == NOT_YET_VALID:
        return "has a certificate that is not valid yet; compare the clocks"
    return f"has a certificate of another CA than {CA} in this device's bundle; is the bundle of this deployment?"
