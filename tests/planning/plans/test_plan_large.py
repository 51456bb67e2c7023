"""The plan of many clients or several cells: the cuts, the clients and the seconds of the run that follows it."""

import json
from pathlib import Path

import numpy as np
import pytest

import hsfl as package
from hsfl.allocation.cuts.large_fleets import priced_fleet_cuts
from hsfl.allocation.cuts.search import CutRequest
from hsfl.config import read_config
from hsfl.network.devices import MANY_CLIENTS
from hsfl.network.history import write_history
from hsfl.planning.plans.plan_large import CrowdSamples
from hsfl.planning.policy_cuts import cut_request
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.rounds.round_clock import RoundClock
from hsfl.planning.world import make_world, sample_draws
from hsfl.runs.prepare import prepare
from tests.naming import names
from tests.small_runs import TINY, hsfl, read_strictly, tiny, tiny_words

pytest.importorskip("pyscipopt")
CELLS = (
    "fleet.num_clients=6",
    "network.cells=2",
    "network.num_subchannels=2",
    "network.main_hz=1e9",
    "fleet.cpu_hz=[1e8,1e9]",
)
CROWD = (
    f"fleet.num_clients={MANY_CLIENTS + 100}",
    "train.clients_per_round=12",
    "train.receivers=chosen",
    "network.cells=3",
    "data.limit=600",
)


def unlisted(*changes: str) -> list[str]:
    """The words of a tiny config whose cuts are not given."""
    return [word for word in (*TINY, *changes) if not word.startswith("fleet.cuts=[")]


@pytest.mark.parametrize("policy", ["proposed", "even", "scls+ecfa"])
def test_the_mean_round_of_a_plan_is_that_of_the_run(policy: str, tmp_path: Path) -> None:
    """On recorded rounds, in which everyone takes part, plan and run see the same."""
    history = tmp_path / "rounds.npz"
    write_history(sample_draws(make_world(tiny(*CELLS, "fleet.cuts=1"), (1, 8, 8), 10), 3), history)
    cells = [word for word in CELLS if not word.startswith("fleet.cpu_hz")]  # the history has the speeds
    words = tiny_words(*cells, "fleet.cuts=planned", f"allocation.policy={policy}", f"network.history={history}")
    plan = hsfl("plan", *words, "--set", "allocation.samples=3", "--out", tmp_path / "plan", "--json").json()
    assert hsfl("run", "--plan", tmp_path / "plan", "--out", tmp_path / "run").code == 0
    rounds = read_strictly(tmp_path / "run" / "rounds.jsonl")
    assert [each["cuts"] for each in rounds] == 3 * [plan["cuts"]]
    assert [each["round_s"] for each in rounds] == pytest.approx(plan["crowd"]["rounds_s"], rel=1e-6)
    assert plan["round_s"] == pytest.approx(np.mean([each["round_s"] for each in rounds]), rel=1e-6)
    assert hsfl("run", *words, "--out", tmp_path / "same").code == 0
    assert read_strictly(tmp_path / "same" / "rounds.jsonl")[0]["cuts"] == plan["cuts"]
    assert 0 < plan["lower_bound_s"] <= plan["round_s"]
    page = (tmp_path / "plan" / "report.html").read_text()
    assert json.dumps(plan["crowd"]["cuts"], separators=(",", ":")) in page


@pytest.mark.slow
def test_many_clients_are_planned_as_a_run_plans_them() -> None:
    words = unlisted(*CROWD, "fleet.cuts=planned", "allocation.policy=proposed")
    plan, bench = package.plan(None, words), prepare(tiny(*words[len(TINY) - 1 :]))
    assert tuple(plan.cuts) == bench.task.cuts
    assert plan.clients == []
    crowd = plan.crowd
    assert crowd is not None
    assert sum(crowd.cuts.values()) == crowd.num_clients == MANY_CLIENTS + 100
    assert (crowd.num_cells, crowd.num_chosen, crowd.num_kept) == (3, [12, 12], [12, 12])
    assert all(0 < bound_s <= round_s for bound_s, round_s in zip(crowd.bounds_s, crowd.rounds_s, strict=True))
    assert plan.gap <= 0.02
    assert plan.round_s == plan.baselines_s["proposed"] < plan.baselines_s["even"]
    assert all(values == sorted(values) and len(values) == len(crowd.quantiles) for values in crowd.seconds.values())


def test_the_even_rule_is_timed_as_its_run_is() -> None:
    words = unlisted(*CELLS, "train.clients_per_round=4")
    even = tiny(*CELLS, "train.clients_per_round=4", "fleet.cuts=planned", "allocation.policy=even")
    bench = prepare(even)
    samples = CrowdSamples(even, bench.world, bench.num_samples)
    clock = RoundClock(even, samples.played, bench.task.cuts, bench.num_samples)
    mean_s = np.mean([clock.round(index, chosen)[0].round_s for index, chosen in enumerate(samples.chosen)])
    assert package.plan(None, words).baselines_s["even"] == pytest.approx(mean_s, rel=1e-12)


def test_what_is_printed_and_said() -> None:
    told = hsfl("plan", *tiny_words(*CELLS, "fleet.cuts=planned", "train.clients_per_round=4")).out
    names(told, "6 clients", "2 cells", "4 take part")
    names(told, "no allocation")
    names(told, "longer than proposed")
    names(told, "the main server")
    late = package.plan(None, unlisted(*CELLS, "train.tau_s=0.05"))
    assert late.crowd is not None
    assert sum(late.crowd.num_kept) < sum(late.crowd.num_chosen)
    assert any("do not end within train.tau_s = 0.05" in note for note in late.notes)


def crowd_request() -> CutRequest:
    """What is asked of the search for the cuts of a crowd."""
    unequal = ("fleet.cpu_hz=[1e8,4e9]", "network.main_hz=1e9")
    config = read_config(None, unlisted(*CROWD, *unequal, "fleet.cuts=planned", "allocation.policy=proposed"))
    world = make_world(config, (1, 8, 8), 10)
    return cut_request(CutTask.of_run(config, world, np.full(config.fleet.num_clients, 20.0)))


@pytest.mark.parametrize(("winner", "bound_s", "taken"), [(0, 1.5, 0), (1, 1.5, 1), (2, 1.5, 2), (2, 0.5, 0)])
def test_a_finalist_that_is_proven_to_be_shorter_is_taken(
    winner: int, bound_s: float, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the model of prices says of the three. One finalist takes 1 s, the others take 2 s with this bound."""
    finalists: list[tuple[int, ...]] = []

    def allocated(cells: object, cuts: np.ndarray, last_s: float, limit_s: float) -> tuple[float, float]:
        if (rows := tuple(cuts.tolist())) not in finalists:
            finalists.append(rows)
        return (1.0, 1.0) if finalists.index(rows) == winner else (2.0, bound_s)

    monkeypatch.setattr("hsfl.allocation.cuts.large_fleets._allocated", allocated)
    choice = priced_fleet_cuts(crowd_request())
    assert len(finalists) == 3
    assert tuple(choice.cuts.tolist()) == finalists[taken]
