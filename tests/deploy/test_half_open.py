"""Strangers open connections and say nothing: the servers keep descriptors for their own files, and honest clients train on."""

import resource
from pathlib import Path

import pytest

from hsfl.deploy.trust.authority import Authority
from tests.deploy.fleet import RUN, changed, fleet
from tests.deploy.flood import HalfOpen, room_for

pytestmark = pytest.mark.slow
ROUNDS = changed(RUN, train={"rounds": 4, "tau_s": 120.0})
NAMES = ("ada", "bo", "cy")


@pytest.mark.parametrize(("server", "count"), [("main", 1100), ("main", 5000), ("edge", 1100)])
def test_half_open_connections_end_no_server(tmp_path: Path, server: str, count: int) -> None:
    """At 1,024 descriptors, without a certificate. Clients that are there go on, and one that comes later gets in: only with it are
    they enough for a round."""
    room_for(count)
    authority = Authority.create(tmp_path / "certs")
    for name in NAMES:
        authority.add(name)
    run = changed(ROUNDS, fleet={"num_clients": 3, "cuts": [1, 2, 3]})
    with fleet(tmp_path, run, names=NAMES, certs=tmp_path / "certs") as running:
        running.start("edge", "main")
        for name in ("edge", "main"):
            resource.prlimit(running.running[name].process.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        running.start("ada", "bo")
        for name in ("ada", "bo"):
            running.until_event(name, "joined")
        strangers = HalfOpen(running.main_port if server == "main" else running.edge_port, count)
        try:
            running.until_event(server, "connections refused")
            running.start("cy")
            assert running.wait("main") == 0
        finally:
            strangers.close()
        assert [record["kept"] for record in running.rounds()] == [[0, 1, 2]] * 4
        lines = running.running[server].events()
        assert sum(line.get("address", 0) for line in lines if line["event"] == "connections refused") > 100
        assert not [line for line in lines if line["level"] == "error"]
