"""A shared training gives the records that a training of its own gives."""

import json
import shutil
from pathlib import Path

import pytest

from hsfl.config import RunConfig, with_changes
from hsfl.data.datasets import load
from hsfl.experiments.trace import share, shared_from
from hsfl.records import RoundRecord, RunFolder, read_json
from hsfl.training import simulate
from tests.runs import tiny

CLOCK = ("round", "framework", "sim_time_s", "round_s", "cuts", "kept", "dropped", "phases", "bytes", "num_samples")
# Without norm, so that Adam does not blow up rounding noise.
BASE = tiny("model.norm=none", "data.limit=null", "data.limit_test=null", "fleet.max_cut=5", "train.batch_size=64")
DATA = load("digits")


def trained(path: Path, *changes: str) -> tuple[RunConfig, list[RoundRecord]]:
    config = with_changes(BASE, changes)
    simulate.run(config, path, dataset=DATA)
    return config, RunFolder(path).rounds()


@pytest.fixture(scope="module")
def hsfl_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "hsfl"
    trained(path, "framework=hsfl")
    return path


@pytest.mark.parametrize("framework", ["splitfed_v1", "fl"])
def test_twins_share_all_but_the_clock(framework: str, hsfl_run: Path, tmp_path: Path) -> None:
    config, own = trained(tmp_path / "own", f"framework={framework}")
    assert share(hsfl_run, config, tmp_path / "shared", DATA)
    assert shared_from(tmp_path / "shared") == "hsfl"
    shared = RunFolder(tmp_path / "shared").rounds()
    source = RunFolder(hsfl_run).rounds()
    assert len(shared) == len(own) == 3
    for mine, real, origin in zip(shared, own, source):
        for name in CLOCK:
            assert getattr(mine, name) == getattr(real, name), name
        assert mine.train_loss == pytest.approx(real.train_loss, rel=1e-3)
        assert mine.test_accuracy == pytest.approx(real.test_accuracy, abs=0.01)
        assert mine.train_loss == origin.train_loss
        assert mine.round_s != origin.round_s
    assert RunFolder(tmp_path / "shared").clients() == RunFolder(tmp_path / "own").clients()
    for name in ("status", "rounds", "sim_time_s", "bytes", "drops"):
        mine_ends, real_ends = (read_json(tmp_path / place / "summary.json") for place in ("shared", "own"))
        assert mine_ends[name] == real_ends[name], name


def test_a_budget_ends_the_same_training_sooner(hsfl_run: Path, tmp_path: Path) -> None:
    records = RunFolder(hsfl_run).rounds()
    budget_s = records[1].sim_time_s + 0.5 * records[2].round_s
    config, own = trained(tmp_path / "own", "framework=hsfl", f"train.budget_s={budget_s!r}")
    assert share(hsfl_run, config, tmp_path / "shared", DATA)
    shared = RunFolder(tmp_path / "shared").rounds()
    assert [r.round for r in shared] == [1, 2]
    assert [(r.train_loss, r.test_accuracy, r.sim_time_s, r.bytes) for r in shared] == [
        (r.train_loss, r.test_accuracy, r.sim_time_s, r.bytes) for r in own
    ]
    assert read_json(tmp_path / "shared" / "summary.json")["status"] == "budget"


def test_nothing_is_shared_where_clients_are_dropped(hsfl_run: Path, tmp_path: Path) -> None:
    """FL with a tau that its straggler cannot keep; and frameworks that are another algorithm."""
    finish_s = [sum(ends) for ends in _own_seconds(tmp_path)]
    tau_s = 0.5 * (max(finish_s) + sorted(finish_s)[-2])
    config = with_changes(BASE, ["framework=fl", f"train.tau_s={tau_s!r}"])
    assert not share(hsfl_run, config, tmp_path / "fl", DATA)
    assert not share(hsfl_run, with_changes(BASE, ["framework=splitfed_v2"]), tmp_path / "v2", DATA)
    assert not share(hsfl_run, with_changes(BASE, ["framework=hsfl", "train.rounds=4"]), tmp_path / "more", DATA)
    once = with_changes(config, ["train.rounds=1"])
    assert not share(tmp_path / "free", once, tmp_path / "fl", DATA)  # the same framework, but it kept everyone
    assert share(tmp_path / "free", with_changes(once, ["train.tau_s=null"]), tmp_path / "same", DATA)
    assert not (tmp_path / "fl").exists()


def _own_seconds(tmp_path: Path) -> list[list[float]]:
    """Seconds of each client's phases before the download, in FL's first round."""
    _, records = trained(tmp_path / "free", "framework=fl", "train.rounds=1")
    phases = {name: span for name, span in records[0].phases.items() if name != "model_down"}
    return [[span["end_s"][k] - span["start_s"][k] for span in phases.values()] for k in range(3)]


def test_a_training_that_begins_differently_is_not_shared(hsfl_run: Path, tmp_path: Path) -> None:
    """The first round of the other framework is trained, and its loss must be the source's."""
    shutil.copytree(hsfl_run, tmp_path / "other")
    lines = (tmp_path / "other" / "rounds.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    lines[0] = json.dumps(first | {"train_loss": 1.001 * first["train_loss"]})
    (tmp_path / "other" / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    config = with_changes(BASE, ["framework=fl"])
    assert not share(tmp_path / "other", config, tmp_path / "shared", DATA)
    assert share(hsfl_run, config, tmp_path / "really", DATA)
