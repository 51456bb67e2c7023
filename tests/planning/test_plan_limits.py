"""A search for cuts keeps its time limit, says that it was stopped, and is not made again when a run goes on."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hsfl.allocation.cuts import radio as judging
from hsfl.allocation.cuts.radio import radio_request
from hsfl.allocation.cuts.search import CutSettings, search_cuts
from hsfl.allocation.exact import exact
from hsfl.allocation.random_scenarios import random_scenario
from hsfl.runs import loop
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import names
from tests.report.fabricated import data_in
from tests.small_runs import hsfl, tiny


@pytest.mark.parametrize("method", ["descent", "ga"])
def test_a_search_keeps_its_limit_where_every_candidate_is_slow(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Each round of shared bands takes 20 ms: 50 candidates on 10 samples would take 10 s."""
    rng = np.random.default_rng(0)
    one = random_scenario(rng, 6, 3, "bandwidth")
    gains = rng.exponential(1.0, (2, 10, 6, 3)) * one.main_gain.mean() + one.main_gain.min()
    samples = [replace(one, main_gain=main, edge_gain=edge) for main, edge in zip(*gains)]
    exact = judging.exact

    def slow(*words, **settings):  # type: ignore[no-untyped-def]
        time.sleep(0.02)
        return exact(*words, **settings)

    monkeypatch.setattr(judging, "exact", slow)
    search_cuts(radio_request(samples, CutSettings(method=method, time_limit_s=0.1)))  # compiles
    plan = search_cuts(radio_request(samples, CutSettings(method=method, time_limit_s=1.0)))
    assert plan.seconds < 3.0
    assert plan.timed_out
    assert plan.lower_bound_s <= plan.mean_s
    assert len(plan.round_s) == 10


PLANNED = (
    *("fleet.cuts=planned", "allocation.policy=proposed", "allocation.samples=4", "fleet.max_cut=[3, 4, 5]"),
    "allocation.plan_time_limit_s=0.001",
)


def test_a_stopped_search_says_so_and_its_cuts_stay(tmp_path: Path) -> None:
    """On the terminal, in cuts.json and on the page; and a resume under load goes on with the same cuts."""
    told: list[str] = []

    class Told(loop.Observer):
        def warns(self, message: str) -> None:
            told.append(message)

    loop.train_run(tiny(*PLANNED, "train.rounds=1"), tmp_path / "run", observer=Told())
    said = "the search for cuts was stopped by allocation.plan_time_limit_s = 0.001"
    assert any(said in message for message in told)
    stored = json.loads((tmp_path / "run" / "cuts.json").read_text())
    assert said in stored["note"]
    over = threading.Event()
    busy = threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(over.is_set, True)])
    busy.start()
    try:
        loop.train_run(tiny(*PLANNED), tmp_path / "run", resume=True)
    finally:
        over.set()
        busy.join()
    assert [record.cuts for record in RunFolder(tmp_path / "run").rounds()] == [stored["cuts"]] * 3
    assert json.loads((tmp_path / "run" / "cuts.json").read_text()) == stored
    assert hsfl("report", tmp_path / "run").code == 0
    assert said in " ".join(data_in(tmp_path / "run" / "report.html")["runs"][0]["words"])


def test_a_plan_that_was_stopped_says_so(tmp_path: Path) -> None:
    words = ["plan", "--cost", tmp_path / "cost.json", "--out", tmp_path / "plan"]
    assert hsfl("cost", "cnn", "--input", "1,8,8", "--save", tmp_path / "cost.json").code == 0
    changes = (
        "fleet.num_clients=3",
        "fleet.max_cut=[3, 4, 5]",
        "allocation.samples=2",
        "allocation.plan_time_limit_s=0.001",
    )
    answer = hsfl(*words, *(word for change in changes for word in ("--set", change)))
    assert answer.code == 0, answer
    names(answer.out, "note:", "search for cuts", "stopped")
    assert any("was stopped" in note for note in json.loads((tmp_path / "plan" / "plan.json").read_text())["notes"])
    assert any("was stopped" in note for note in data_in(tmp_path / "plan" / "report.html")["plans"][0]["notes"])


def test_recorded_rounds_are_solved_by_the_code_that_is_compiled(tmp_path: Path) -> None:
    """numba compiles anew for arrays that lie otherwise in memory (a slice of recorded rounds): for minutes, and within the limit."""
    scenario = random_scenario(np.random.default_rng(0), 3, 4)
    odd = replace(scenario, main_gain=np.asfortranarray(scenario.main_gain), cpu_hz=np.repeat(scenario.cpu_hz, 2)[::2])
    odd.cpu_hz.setflags(write=False)
    for name in ("main_gain", "cpu_hz"):
        assert not getattr(odd, name).flags.carray
        assert getattr(odd.checked(), name).flags.carray
    exact(scenario, np.ones(3, int))
    before = len(stage_signatures())
    exact(odd.checked(), np.ones(3, int))
    assert len(stage_signatures()) == before


def stage_signatures() -> list[object]:
    from hsfl.allocation.stage.stage import make_stage_compiled

    return list(make_stage_compiled.signatures)  # type: ignore[attr-defined]
