"""Certificates in a running deployment over mutual TLS: one device is revoked in mid-round and the others are renewed; a bundle is broken."""

import asyncio
import shutil
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hsfl.deploy.client import ClientProcess
from hsfl.deploy.client_round import OpenRound
from hsfl.deploy.client_setup import ClientSetup
from hsfl.deploy.trust.authority import Authority
from hsfl.errors import InputError
from tests.deploy.fleet import RUN, changed, fleet, simulated
from tests.deploy.inside import Inside
from tests.deploy.test_faults import NAMES, PLUGIN, SLOW_RUN
from tests.naming import names

TWO_ROUNDS = changed(RUN, train={"rounds": 2, "tau_s": 100.0})


class Lost(ClientProcess):
    """A device that is revoked after its first batches, while all the others get new certificates."""

    authority: Authority

    async def _fetch_train_upload(self, setup: ClientSetup, job: OpenRound) -> None:
        work = self._round_work(setup, job)
        await work.fetch_head()
        await work.enter_round()
        self.authority.renew(["main", "edge", "ada", "bo", "cy"])
        self.authority.revoke("di")
        await asyncio.sleep(60)  # the gate does not wait for its next word


def test_a_device_is_revoked_and_the_others_are_renewed_in_mid_round(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "certs")
    for name in NAMES:
        authority.add(name)
    inside = Inside(tmp_path, TWO_ROUNDS, more={"min_clients": 3, "first_clients": 4}, certs=tmp_path / "certs")
    words: list[str] = []

    async def lost() -> None:
        device = Lost(inside.client_settings("di"), authority.bundle_of("di"), inside.log("di"))
        device.authority = authority
        try:
            await device.run_and_reconnect()
        except InputError as error:
            words.append(str(error))

    assert inside.go(lost, honest=NAMES[:3]).status == "finished"
    assert len(words) == 1
    assert words[0].startswith("the main server refuses di: di's certificate ")
    assert words[0].endswith(" was revoked")
    drops = [line for line in inside.events("main") if line["event"] == "client dropped"]
    assert [(line["client"], line["round"], line["reason"]) for line in drops] == [("di", 1, "revoked")]
    assert [record["kept"] for record in inside.rounds()] == [[0, 1, 2]] * 2
    wanted, model = simulated(inside.run, [[0, 1, 2]] * 2).named(), load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in wanted.items())
    for log in inside.logs.values():
        for hidden in (str(tmp_path), "PRIVATE", f'"{socket.gethostname()}"', "127.0.0.1"):
            assert hidden not in log.getvalue()


@pytest.mark.slow
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
        assert [there.wait(name) for name in ("bo", "cy", "di")] == [2, 2, 2]
        names(there.running["cy"].log.read_text(), "key.pem is not the key", "cert.pem")
        names(there.running["di"].log.read_text(), "cert.pem", "missing", "copy the folder")
        names(there.running["bo"].log.read_text(), "another CA", "ca.pem")
