"""`hsfl status` of a running deployment, and the demo as people type it."""

import asyncio
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from hsfl.deploy import client
from hsfl.deploy.demo import Demo, free_port
from hsfl.deploy.main.status import ask_status
from hsfl.deploy.settings import MainSettings
from hsfl.deploy.trust.authority import Authority
from hsfl.deploy.wire.versions import own_versions
from hsfl.errors import InputError
from hsfl.files import read_json
from hsfl.report.page.page import page_data
from hsfl.report.page.page_sources import read_sources
from tests.deploy.fleet import RUN, changed
from tests.deploy.inside import Inside
from tests.naming import names, raises
from tests.small_runs import hsfl


def metrics_page(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


TWO_ROUNDS = changed(RUN, train={"rounds": 2})


def test_status_says_who_is_there_and_which_server_holds_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over mutual TLS, with clients that run another torch than the servers."""
    older = replace(own_versions(), torch="2.0.0")
    monkeypatch.setattr(client, "own_versions", lambda: older)
    authority, port = Authority.create(tmp_path / "certs"), free_port()
    for device in ("ada", "bo", "cy", "di"):
        authority.add(device)
    more = {"metrics": f"127.0.0.1:{port}", "metrics_clients": "seats"}
    inside = Inside(tmp_path, TWO_ROUNDS, certs=authority.folder, more=more)
    reports, pages = list[dict[str, Any]](), list[str]()

    async def operator() -> None:
        settings = MainSettings(listen=inside.main)
        while True:
            try:
                reports.append(await ask_status(settings, authority.bundle_of("main")))
                pages.append(await asyncio.to_thread(metrics_page, port))
            except InputError:
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.02)

    inside.go(operator)
    last = reports[-1]
    assert (last["framework"], last["rounds"]) == ("hsfl", 2)
    assert [client["name"] for client in last["clients"]] == ["ada", "bo", "cy", "di"]
    assert [client["cut"] for client in last["clients"]] == [1, 2, 3, 5]
    assert last["main_units"] == [1, 5]
    assert last["edge_units"] == [0, 5]
    assert last["holds_whole_model"] == ["edge"]  # di holds all five units, and so does the edge server
    doing = {client["doing"] for report in reports for client in report["clients"]}
    assert all(re.fullmatch(r"away|joins|waits|uploads|complete|step \d+ of 3", words) for words in doing), doing
    assert len(doing) > 1
    measured = [report["clients"][0]["measured_s"] for report in reports if report["rounds_done"]]
    assert any(times.get("client", 0) > 0 for times in measured)
    ada = last["clients"][0]
    assert ada["versions"] == asdict(older)
    assert last["versions"] == dict.fromkeys(("main", "the edge server"), asdict(own_versions()))
    assert (ada["drops_by_reason"], ada["late_rounds"]) == ({}, 0)
    assert ada["certificate_days"] == last["certificate_days"] == pytest.approx(365, abs=1)
    lines = pages[-1].splitlines()
    assert 'hsfl_client_late_rounds_total{client="0"} 0.0' in lines
    assert any(line.startswith('hsfl_client_rounds_total{client="3"} ') for line in lines)
    assert 364 < float(next(line for line in lines if line.startswith("hsfl_certificate_days ")).split()[1]) < 366
    assert not any(device in page for device in ("ada", 'bo"', 'cy"') for page in pages)
    (note,) = last["version_notes"]
    names(note, "torch is 2.0.0", "ada, bo, cy", "1 more", own_versions().torch)
    clients = read_json(tmp_path / "run" / "clients.json")
    assert clients["versions"] == [asdict(older)] * 4
    assert (clients["notes"], clients["evaluated_by"]) == ([note], "here")
    (shown,) = page_data(read_sources([tmp_path / "run"]))["runs"]
    assert shown["clients"]["versions"] == clients["versions"]
    assert f"Note: {note}." in shown["words"]
    events = inside.events("main")
    assert [line["torch"] for line in events if line["event"] == "client joined"] == ["2.0.0"] * 4
    warned = [line for line in events if line["event"] == "client runs other versions than this server"]
    assert sorted(line["client"] for line in warned) == ["ada", "bo", "cy", "di"]
    assert not any(line["event"].startswith("the edge server runs other") for line in events)


def test_no_server_no_status() -> None:
    with raises(InputError, "hsfl serve main"):
        asyncio.run(ask_status(MainSettings(listen="127.0.0.1:9"), None))


def test_until_its_first_round_the_demo_shows_what_the_main_server_says(tmp_path: Path) -> None:
    class Main:
        polls, returncode = 0, 0

        def poll(self) -> int | None:
            """As each look begins, the log has grown by a line and a half."""
            self.polls += 1
            with (tmp_path / "main.log").open("a") as log:
                log.write(f"whole {self.polls}\nha" if self.polls % 2 else "lf\n")
            return 0 if self.polls == 3 else None

    said: list[str] = []
    demo = Demo(tmp_path, processes={"main": Main()})  # type: ignore[dict-item]
    demo.follow(lambda record: None, said.append)
    assert said == ["whole 1", "half", "whole 3"]


@pytest.mark.slow
def test_the_demo_ends_with_a_page(tmp_path: Path) -> None:
    answer = hsfl("deploy-demo", "--out", tmp_path / "demo", "--rounds", 2)
    assert answer.code == 0, answer
    assert "round 2/2" in answer.out
    assert "main: client joins" in answer.out
    run = tmp_path / "demo" / "run"
    assert "measured / modelled" in (run / "report.html").read_text()
    assert read_json(run / "summary.json")["status"] == "finished"
    assert hsfl("evaluate", run, "--json").json()["accuracy"] == read_json(run / "summary.json")["test_accuracy"]
    assert hsfl("export", run).code == 0
