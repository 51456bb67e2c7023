"""`hsfl certs`: the certificates of a deployment."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hsfl.commands.console import Json, need_deploy_extra, one_line_errors, out_console, print_json, show_table
from hsfl.formats import count

if TYPE_CHECKING:
    from hsfl.deploy.trust.authority import Authority, Issued

commands = typer.Typer(
    no_args_is_help=True,
    help="Certificates for real machines: one CA, a bundle for each server and device (docs/deploy.md).",
)
Folder = Annotated[
    Path, typer.Option("--dir", help="The folder of the CA. It holds the CA's key: keep it to yourself.")
]
Days = Annotated[int, typer.Option(min=1, max=3650, help="For how many days the certificates are valid.")]
Name = Annotated[str, typer.Argument(help="The device's name, such as ward-1; main and edge are the servers.")]
YEAR = 365


def _open_authority(folder: Path) -> "Authority":
    need_deploy_extra()
    from hsfl.deploy.trust.authority import Authority  # here, because cryptography is an extra

    return Authority(folder)


@commands.command("init", epilog="Example: `hsfl certs init`, then `hsfl certs add ward-1` for each device")
def init_command(folder: Folder = Path("certs"), days: Days = YEAR, as_json: Json = False) -> None:
    """Make a CA, and the bundles of the main and the edge server."""
    with one_line_errors():
        need_deploy_extra()
        from hsfl.deploy.trust.authority import Authority  # here, because cryptography is an extra

        authority = Authority.create(folder, days)
        issued = authority.issued()
    _show_issued(authority, issued, as_json)


@commands.command("add", epilog="Example: `hsfl certs add ward-1`, then copy certs/ward-1 to the device")
def add_command(name: Name, folder: Folder = Path("certs"), days: Days = YEAR, as_json: Json = False) -> None:
    """Issue a certificate for a new device, by the CA that is there."""
    with one_line_errors():
        authority = _open_authority(folder)
        issued = [authority.add(name, days)]
    _show_issued(authority, issued, as_json)


@commands.command("renew", epilog="Example: `hsfl certs renew` once a month, or `hsfl certs renew ward-1`")
def renew_command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names; by default all whose certificate expires within 30 days.")
    ] = None,
    folder: Folder = Path("certs"),
    days: Days = YEAR,
    as_json: Json = False,
) -> None:
    """Issue new certificates and keys to names that have a certificate. The old certificates stay valid until they
    expire.

    Copy the bundles again afterwards; a running server takes up its new certificate by itself.
    """
    with one_line_errors():
        authority = _open_authority(folder)
        issued = authority.renew(names or [], days)
    _show_issued(authority, issued, as_json)


@commands.command(
    "revoke",
    epilog="Example: `hsfl certs revoke ward-1`, then copy certs/authority/denylist.txt to the servers' bundles",
)
def revoke_command(name: Name, folder: Folder = Path("certs"), as_json: Json = False) -> None:
    """Put a device's certificates on the denylist. Running servers reread the denylist and end the device's streams."""
    with one_line_errors():
        authority = _open_authority(folder)
        issued = authority.revoke(name)
    serials = [f"{certificate.serial:x}" for certificate in issued]
    if as_json:
        print_json({"name": name, "revoked": serials, "denylist": str(authority.ca_folder / "denylist.txt")})
        return
    _print_text(f"revoked {name}: {count(len(serials), 'certificate')}, serial {', '.join(serials)}")
    _print_text(
        f"copy {authority.ca_folder / 'denylist.txt'} into the bundles on both servers; they reread it while they run"
    )


@commands.command("list")
def list_command(folder: Folder = Path("certs"), as_json: Json = False) -> None:
    """Show every certificate with its expiry and state."""
    with one_line_errors():
        authority = _open_authority(folder)
        rows = [_certificate_row(certificate, authority.moment) for certificate in authority.issued()]
    end = authority.certificate.not_valid_after_utc
    if as_json:
        print_json({"ca": {"expires": _date(end)}, "certificates": rows})
        return
    _show_certificates(rows)
    _print_text(f"the CA expires on {_date(end)}")


def _show_certificates(rows: list[dict[str, Any]]) -> None:
    cells = [(r["name"], r["role"], r["state"], r["expires"], str(r["days_left"]), r["serial"]) for r in rows]
    styles = [
        "red" if r["state"] in ("expired", "expires soon") else "dim" if r["state"] != "valid" else None for r in rows
    ]
    show_table(out_console, ("name", "role", "state", "expires", "days left", "serial"), cells, styles)


def _certificate_row(certificate: "Issued", moment: datetime) -> dict[str, Any]:
    days_left = (certificate.valid_until - moment).days
    expires = _date(certificate.valid_until)
    return {
        "name": certificate.name,
        "role": certificate.role,
        "state": certificate.state(moment),
        "expires": expires,
        "days_left": days_left,
        "serial": f"{certificate.serial:x}",
    }


def _show_issued(authority: "Authority", issued: list["Issued"], as_json: bool) -> None:
    """Say what was issued and which folder goes where."""
    rows = [
        _certificate_row(certificate, authority.moment) | {"bundle": str(authority.bundle_of(certificate.name))}
        for certificate in issued
    ]
    if as_json:
        print_json({"certificates": rows})
        return
    for row in rows:
        place = "the host of the " + row["role"] + " server" if row["role"] != "client" else "the device"
        _print_text(f"{row['name']}: valid until {row['expires']}; copy {row['bundle']} to {place}")
    if not rows:
        _print_text("no certificate expires within 30 days; hsfl certs renew NAME renews one all the same")


def _date(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d}"


def _print_text(text: str) -> None:
    out_console.print(text, soft_wrap=True)
