"""The CA's folder: what is issued, renewed, revoked and listed, who may read it, and a bundle that checks itself."""

import base64
import json
import os
import random
import re
import shutil
import stat
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from hsfl.deploy.trust import authority as module
from hsfl.deploy.trust.authority import Authority
from hsfl.deploy.trust.bundle import check_bundle
from hsfl.deploy.trust.denylist import Denylist, read_denylist
from hsfl.deploy.trust.identity import Refused, check_name, named_by, uris
from hsfl.errors import InputError
from tests.naming import names, raises
from tests.small_runs import hsfl, refused

NOW = datetime.now(UTC)


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    Authority.create(folder).add("ward-1")
    return folder


def certificate(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())


def test_what_a_certificate_says(certs):
    client, main, ca = certificate(certs / "ward-1"), certificate(certs / "main"), Authority(certs).certificate
    names = {"client": client, "main": main}
    found = {
        who: each.extensions.get_extension_for_class(x509.SubjectAlternativeName).value for who, each in names.items()
    }
    as_uris = {who: value.get_values_for_type(x509.UniformResourceIdentifier) for who, value in found.items()}
    assert as_uris["client"] == ["hsfl://client/ward-1", "hsfl://role/client"]
    assert as_uris["main"] == ["hsfl://server/main", "hsfl://role/main"]
    assert found["client"].get_values_for_type(x509.DNSName) == []  # passes for no server
    usage = client.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    for each in (client, main):
        assert not each.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert timedelta(days=365) <= each.not_valid_after_utc - each.not_valid_before_utc <= timedelta(days=366)
        each.verify_directly_issued_by(ca)
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    assert {path.name for path in (certs / "ward-1").iterdir()} == {"ca.pem", "cert.pem", "key.pem"}
    assert {path.name for path in (certs / "edge").iterdir()} == {"ca.pem", "cert.pem", "key.pem", "denylist.txt"}


def test_keys_are_for_their_owner_alone_even_while_they_are_written(tmp_path, monkeypatch):
    seen = []
    real = os.replace

    def looked_at(source, target):
        seen.append((Path(target).name, stat.S_IMODE(os.stat(source).st_mode)))
        real(source, target)

    monkeypatch.setattr(os, "replace", looked_at)
    before = os.umask(0)
    try:
        authority = Authority.create(tmp_path / "certs")
    finally:
        os.umask(before)
    keys = [mode for name, mode in seen if name.endswith(("key", "key.pem"))]
    assert keys == [0o600] * 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in authority.folder.rglob("*key*")} == {0o600}
    assert stat.S_IMODE(authority.ca_folder.stat().st_mode) == 0o700
    assert "PRIVATE" not in repr(check_bundle(authority.bundle_of("main")))


def test_a_new_device_needs_no_new_ca_and_a_ca_is_never_overwritten(certs):
    before = {path: path.read_bytes() for path in certs.rglob("*") if path.is_file()}
    Authority(certs).add("ward-2")
    assert {path: path.read_bytes() for path in before} == before
    with raises(InputError, "CA already", "hsfl certs add NAME"):
        Authority.create(certs)
    with raises(InputError, "ward-2", "renew"):
        Authority(certs).add("ward-2")


def test_renewal_replaces_key_and_certificate_and_the_old_one_can_still_be_revoked(certs):
    old = check_bundle(certs / "ward-1")
    Authority(certs).renew(["ward-1"])
    new = check_bundle(certs / "ward-1")
    assert new.identity.serial != old.identity.serial
    assert new.key_pem != old.key_pem
    states = {one.serial: one.state(NOW) for one in Authority(certs).certificates_of("ward-1")}
    assert states == {new.identity.serial: "valid", old.identity.serial: "replaced"}
    Authority(certs).revoke("ward-1")
    for place in ("authority", "main", "edge"):
        assert read_denylist(certs / place / "denylist.txt").keys() == states.keys()
    with raises(InputError, "ward-1", "revoked", "hsfl certs add ward-1"):
        Authority(certs).renew(["ward-1"])
    with raises(InputError, "no certificate"):
        Authority(certs).revoke("ward-1")
    assert Authority(certs).add("ward-1").serial not in read_denylist(certs / "main/denylist.txt")


def test_without_names_those_are_renewed_that_expire_soon(certs):
    Authority(certs).add("brief", days=20)
    assert [one.name for one in Authority(certs).renew([])] == ["brief"]
    assert Authority(certs).renew([]) == []
    later = Authority(certs, moment=NOW + timedelta(days=400))
    assert {one.state(later.moment) for one in later.issued()} == {"expired"}
    assert {one.name for one in later.renew([])} == {"brief", "edge", "main", "ward-1"}
    assert later.certificates_of("main")[0].valid_until > NOW + timedelta(days=700)


def test_no_certificate_outlives_its_ca(certs):
    end = Authority(certs).certificate.not_valid_after_utc
    assert Authority(certs, moment=end - timedelta(days=9)).add("late").valid_until == end
    with raises(InputError, "the CA in", "expired on"):
        Authority(certs, moment=end + timedelta(days=1)).add("later")


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "../main", ".hidden", "Ward", "a b", "a\n", "é", "a" * 64, "authority", "-a"]
)
def test_names_that_could_be_paths_or_break_lines_are_refused(name, certs):
    with raises(InputError, ascii(name)[:20], "such as ward-1"):
        check_name(name)
    with raises(InputError, "such as ward-1"):
        Authority(certs).add(name)
    with pytest.raises(Refused):
        named_by([f"hsfl://client/{name}", "hsfl://role/client"])


def test_a_client_cannot_be_named_as_a_server():
    assert uris("main") == ("hsfl://server/main", "hsfl://role/main")
    for found in (["hsfl://client/main", "hsfl://role/client"], ["hsfl://server/ward-1", "hsfl://role/main"]):
        with pytest.raises(Refused, match="disagree"):
            named_by(found)


def test_two_at_once_do_not_lose_a_record(certs, monkeypatch):
    """A second process is told to wait: a serial without a record could not be revoked."""
    real = module._certificate

    def slow(*args):
        with raises(InputError, "another hsfl certs", "wait"):
            Authority(certs).add("second")
        return real(*args)

    monkeypatch.setattr(module, "_certificate", slow)
    Authority(certs).add("first")


def test_a_bundle_says_what_is_wrong_with_it(certs, tmp_path):
    def broken(name: str, content: bytes | None) -> Path:
        place = Path(shutil.copytree(certs / "ward-1", tmp_path / os.urandom(4).hex()))
        (place / name).unlink()
        if content is not None:
            (place / name).write_bytes(content)
            (place / name).chmod(0o600)
        return place

    own = check_bundle(certs / "ward-1", role="client")
    assert (own.identity.name, own.identity.role) == ("ward-1", "client")
    cases = {
        broken("ca.pem", None): ("ca.pem is missing",),
        broken("cert.pem", b"nothing"): ("cert.pem", "no certificate in PEM form"),
        broken("key.pem", b"nothing"): ("key.pem", "no private key", "without a password"),
        broken("ca.pem", (certs / "ward-1/cert.pem").read_bytes()): ("was not issued", "CA of ca.pem"),
        broken("key.pem", b"x" * 2**21): ("key.pem is larger than",),
    }
    for place, parts in cases.items():
        with raises(InputError, *parts):
            check_bundle(place)
    with raises(InputError, "bundle of ward-1", "(client)", "role main"):
        check_bundle(certs / "ward-1", role="main")
    with raises(InputError, "expired", "hsfl certs renew"):
        check_bundle(certs / "ward-1", moment=NOW + timedelta(days=400))
    with raises(InputError, "clock", "1970-01-01 00:00", "set the clock"):
        check_bundle(certs / "ward-1", moment=datetime.fromtimestamp(0, UTC))
    (certs / "ward-1/key.pem").chmod(0o644)
    with raises(InputError, "every user", "chmod 600"):
        check_bundle(certs / "ward-1")


def test_a_denylist_is_reread_and_fails_closed(tmp_path):
    path = tmp_path / "denylist.txt"
    with raises(InputError, "denylist.txt", "missing"):
        Denylist(path)
    path.write_text("# nobody\n")
    denied = Denylist(path)
    assert 0xABC not in denied
    path.write_text("# somebody\nabc ward-1  # lost\n")
    assert denied.reread()
    assert 0xABC in denied
    assert not denied.reread()
    path.unlink()
    assert not denied.reread()
    assert 0xABC in denied
    names(denied.problem, "denylist.txt", "missing", "empty file")


def test_the_commands_for_people_and_programs(tmp_path):
    place = tmp_path / "certs"
    where = ("--dir", place)
    answer = hsfl("certs", "init", *where)
    assert (answer.code, len(answer.out.splitlines())) == (0, 2)
    names(answer.out, f"copy {place / 'main'}", "main server")
    (added,) = hsfl("certs", "add", "ward-1", *where, "--json").json()["certificates"]
    assert added["bundle"] == str(place / "ward-1")
    assert check_bundle(Path(added["bundle"])).identity.serial == int(added["serial"], 16)
    names(hsfl("certs", "renew", *where).out, "no certificate", "30 days")
    assert hsfl("certs", "renew", "ward-1", *where).code == 0
    assert len(hsfl("certs", "revoke", "ward-1", *where, "--json").json()["revoked"]) == 2
    rows = hsfl("certs", "list", *where, "--json").json()["certificates"]
    assert [(row["name"], row["state"]) for row in rows] == [
        ("edge", "valid"),
        ("main", "valid"),
        ("ward-1", "revoked"),
        ("ward-1", "revoked"),
    ]
    listed = hsfl("certs", "list", *where).out
    assert all(row["serial"] in listed and row["expires"] in listed for row in rows)
    names(refused("certs", "list", "--dir", tmp_path / "none"), "no CA", "hsfl certs init")
    names(refused("certs", "revoke", "nobody", *where), "'nobody'", "no certificate")
    assert "PRIVATE" not in json.dumps(rows) + listed + answer.out


def test_the_commands_of_the_guide_run_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guide = (Path(__file__).parents[3] / "docs/deploy.md").read_text()
    (trust,) = re.findall(r"^## Trust\n(.*?)(?=^## |\Z)", guide, re.S | re.M)
    lines = re.findall(r"^    hsfl (certs [^#\n]+)", trust, re.M)
    assert len(lines) >= 5
    for line in lines:
        assert hsfl(*line.split()).code == 0, line


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
@pytest.mark.parametrize("words", [("list",), ("add", "ward-2"), ("renew",), ("revoke", "ward-1")])
def test_a_damaged_ca_is_one_line(tmp_path, content, words):
    folder = tmp_path / "certs"
    Authority.create(folder).add("ward-1")
    (folder / "authority" / "ca.pem").write_bytes(content)
    names(refused("certs", *words, "--dir", folder), "ca.pem", "cannot be read", "put a copy")


def mixed(folder: Path, name: str) -> Path:
    """A CA in which one file is another CA's."""
    other = folder.parent / "other"
    Authority.create(other).add("ward-1")
    (own,), (foreign,) = (sorted((place / "authority").glob(name))[-1:] for place in (folder, other))
    own.write_bytes(foreign.read_bytes())
    return own


@pytest.mark.parametrize("name", ["ca.pem", "ca.key"])
def test_a_ca_of_two_cas_issues_nothing(certs, name):
    """No machine would take the certificates, and each would say something else of them."""
    mixed(certs, name)
    before = sorted(certs.rglob("*"))
    for words in (("add", "ward-2"), ("renew", "ward-1")):
        names(refused("certs", *words, "--dir", certs), "ca.key", "not the key of ca.pem")
    assert sorted(certs.rglob("*")) == before


@pytest.mark.parametrize("words", [("list",), ("add", "ward-2"), ("renew", "ward-1"), ("revoke", "ward-1")])
def test_a_record_that_is_of_no_device_is_one_line(certs, words):
    """As where somebody has put the CA's certificate, or one of the public web, among the issued."""
    record = next((certs / "authority/issued").glob("000003-*.pem"))
    record.write_bytes((certs / "authority/ca.pem").read_bytes())
    names(refused("certs", *words, "--dir", certs), record.name, "put a copy", "to revoke")


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 60))])
def test_a_flipped_bit_in_any_file_is_no_traceback(certs, seed):
    """Not every damage of a record can be seen; what is seen is one line. Damage of the CA's certificate is always seen."""
    rng = random.Random(seed)
    files = [certs / "authority/ca.pem", certs / "authority/ca.key", *sorted((certs / "authority/issued").iterdir())]
    for _ in range(25):
        path = rng.choice([*files, *(certs / "ward-1").iterdir()])
        content = path.read_bytes()
        armour = re.split(rb"(-----[A-Z ]+-----)", content)
        der = bytearray(base64.b64decode(armour[2]))
        der[rng.randrange(len(der))] ^= 1 << rng.randrange(8)
        path.write_bytes(armour[1] + b"\n" + base64.encodebytes(bytes(der)) + armour[3] + b"\n")
        for work in (
            lambda: Authority(certs).issued(),
            lambda: Authority(certs).renew(["main"]),
            lambda: check_bundle(certs / "ward-1"),
        ):
            with suppress(InputError):
                work()
        if path == files[0]:
            with raises(InputError, "ca.pem", "put a copy"):
                Authority(certs)
        path.write_bytes(content)
