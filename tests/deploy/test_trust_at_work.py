"""Certificates in a running deployment: real processes over mutual TLS; one device is revoked in mid-round, all others are renewed."""

import shutil
import socket
from pathlib import Path

import pytest

from hsfl.deploy.certs import Authority
from tests.deploy.fleet import fleet
from tests.deploy.test_faults import EVERYBODY, NAMES, PLUGIN, SLOW_RUN, WITHOUT_DI, end, in_round, start

pytestmark = pytest.mark.slow


def test_a_device_is_revoked_and_the_others_are_renewed_in_mid_round(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "certs")
    for name in NAMES:
        authority.add(name)
    more = {"min_clients": 3, "first_clients": 4}
    with fleet(tmp_path, SLOW_RUN, more=more, plugin=PLUGIN, certs=tmp_path / "certs") as there:
        start(there)
        in_round(there, 2)
        authority.renew(["main", "edge", "ada", "bo", "cy"])
        authority.revoke("di")
        there.until_event("main", "client dropped", client="di", round=2, reason="revoked")
        assert there.wait("di") == 2
        words = there.running["di"].log.read_text()
        assert "the main server refuses di: di's certificate" in words
        assert "was revoked" in words
        assert not there.event("main", "client dropped", reason="late")
        end(there, [EVERYBODY, WITHOUT_DI, WITHOUT_DI])
        for name in ("main", "edge", *NAMES[:3]):
            text = there.running[name].log.read_text()
            assert str(tmp_path) not in text
            assert "PRIVATE" not in text
            assert f'"{socket.gethostname()}"' not in text


def test_a_client_with_a_broken_bundle_says_so_and_ends(tmp_path: Path) -> None:
    authority, other = Authority.create(tmp_path / "certs"), Authority.create(tmp_path / "other")
    for name in NAMES:
        authority.add(name)
    other.add("bo")
    shutil.copy(authority.bundle_of("ada") / "key.pem", authority.bundle_of("cy") / "key.pem")
    shutil.copytree(other.bundle_of("bo"), authority.bundle_of("bo"), dirs_exist_ok=True)
    (authority.bundle_of("di") / "cert.pem").unlink()
    with fleet(tmp_path, SLOW_RUN, plugin=PLUGIN, certs=tmp_path / "certs") as there:
        there.start("edge", "main")
        there.until_event("main", "listens")
        there.start("bo", "cy", "di")
        assert [there.wait(name) for name in ("cy", "di")] == [2, 2]
        assert "key.pem is not the key of cert.pem beside it" in there.running["cy"].log.read_text()
        assert "cert.pem is missing; copy the folder" in there.running["di"].log.read_text()
        told = there.until(lambda: [line["event"] for line in there.running["bo"].events()], "line of bo")
        assert "has a certificate of another CA than ca.pem in this device's bundle" in told[0]
