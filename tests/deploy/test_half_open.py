"""Strangers open connections and say nothing: the servers keep descriptors for their own files, and honest clients train on."""

import resource
from pathlib import Path

import pytest

from hsfl.deploy.trust.authority import Authority
from tests.deploy.fleet import RUN, changed, fleet
from tests.deploy.flood import HalfOpen, room_for

pytestmark = pytest.mark.slow
MANY_ROUNDS = changed(RUN, train={"rounds": 12, "tau_s": 60.0})


@pytest.mark.parametrize("count", [1100, 5000])
@pytest.mark.parametrize("server", ["main", "edge"])
def test_half_open_connections_end_no_server(tmp_path: Path, server: str, count: int) -> None:
    """At 1,024 descriptors, without a certificate. Clients that are there go on, and one that comes later gets in."""
    room_for(count)
    authority = Authority.create(tmp_path / "certs")
    for name in ("ada", "bo", "cy", "di"):
        authority.add(name)
    more = {"min_clients": 3, "first_clients": 3}
    with fleet(tmp_path, MANY_ROUNDS, certs=tmp_path / "certs", more=more) as run:
        run.start("edge", "main")
        for name in ("edge", "main"):
            resource.prlimit(run.running[name].process.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        run.start("ada", "bo", "cy")
        run.until_event("main", "round begins")
        strangers = HalfOpen(run.main_port if server == "main" else run.edge_port, count)
        try:
            run.until(lambda: strangers.num_open() < 200, "refusal of strangers")
            run.start("di")
            run.until_event("di", "joined")
            assert run.wait("main") == 0
        finally:
            strangers.close()
        assert len(run.rounds()) == 12
        assert all({0, 1, 2} <= set(record["kept"]) for record in run.rounds())
        assert (line := run.event(server, "connections refused")) is not None
        assert line["address"] > 100
        assert not [line for line in run.running[server].events() if line["level"] == "error"]
