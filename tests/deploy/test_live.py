"""Beside a live deployment: `hsfl report --watch` follows its folder, and a client that misses the end stops by itself."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from hsfl.deploy.client import ClientProcess
from hsfl.deploy.demo import free_port
from hsfl.deploy.main.server_checkpoint import MainCheckpoint
from hsfl.deploy.settings import ClientSettings
from hsfl.errors import InputError
from hsfl.report.watch import make_server
from hsfl.runs.run_folder.write_records import Summary
from tests.deploy.fleet import RUN, changed
from tests.deploy.inside import Inside
from tests.deploy.proxy import Proxy
from tests.naming import raises

NAMES = ("ada", "bo")
TWO_ROUNDS = changed(RUN, data={"limit": 48}, fleet={"num_clients": 2, "cuts": [1, 3]}, train={"rounds": 2})


@contextmanager
def watching(folder: Path) -> Iterator[str]:
    """The address of a page that follows a folder, as `hsfl report --watch` serves it."""
    server = make_server([folder])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def news(page: str) -> dict[str, Any]:
    with urlopen(f"{page}/data", timeout=10) as answer:
        return dict(json.loads(answer.read())["data"])


def test_the_page_follows_and_a_client_whose_link_broke_before_the_end_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, seen, words = Inside(tmp_path, TWO_ROUNDS, NAMES), list[dict[str, Any]](), list[str]()
    link, gone = Proxy(int(inside.main.rpartition(":")[2])), asyncio.Event()
    finish, write = MainCheckpoint.finish, MainCheckpoint.write_round

    async def look() -> None:
        seen.append(await asyncio.to_thread(news, page))

    async def write_and_look(self: MainCheckpoint, *round: Any) -> None:
        await look()
        await write(self, *round)

    async def finish_alone(self: MainCheckpoint, status: str) -> Summary:
        """The last round is over and nobody was told; the client's link breaks now."""
        await look()
        link.cut()
        await asyncio.wait_for(gone.wait(), 30)
        return await finish(self, status)

    async def cut_off() -> None:
        dialled = {"main": f"127.0.0.1:{link.port}", "away_s": 0.5}
        device = ClientProcess(inside.client_settings("bo").model_copy(update=dialled), None, inside.log("bo"))
        while "main" not in inside.logs or '"listens"' not in inside.logs["main"].getvalue():
            await asyncio.sleep(0.02)  # the main server's start takes longer than away_s
        words.append(await device.run_and_reconnect())
        gone.set()

    monkeypatch.setattr(MainCheckpoint, "write_round", write_and_look)
    monkeypatch.setattr(MainCheckpoint, "finish", finish_alone)
    with watching(tmp_path / "run") as page:
        assert "waiting" in news(page)  # for a folder that is not there yet
        assert inside.go(cut_off, honest=["ada"]).status == "finished"
        seen.append(news(page))
    link.close()
    runs = [each["runs"][0] for each in seen]
    assert [(run["status"], run["num_rounds"]) for run in runs] == [
        *[("under way", 0), ("under way", 1), ("under way", 2)],
        ("finished", 2),
    ]
    (first, _) = runs[2]["rounds"]["measured"]
    assert len(first) == 2  # both clients' seconds stand beside the modelled ones
    assert words == [
        "the main server was away for 0.5 s (away_s): its rounds may be over; start this client again if they are not"
    ]


def test_a_client_that_never_reaches_the_main_server_says_so(tmp_path: Path) -> None:
    inside = Inside(tmp_path, TWO_ROUNDS, NAMES)
    settings = ClientSettings(name="ada", main=f"127.0.0.1:{free_port()}", away_s=0.0)
    with raises(InputError, "away for 0 s", "away_s", "is main"):
        asyncio.run(ClientProcess(settings, None, inside.log("ada")).run_and_reconnect())
