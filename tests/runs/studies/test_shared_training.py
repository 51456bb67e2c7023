"""One training, several clocks: what takes over a training has the numbers that it would have had itself."""

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import BaseModel

from hsfl.allocation.cuts.search import METHODS, CutChoice, CutRequest, CutSettings, descent
from hsfl.plugins import OPTIONS, REGISTERED
from hsfl.runs.loop import train_run
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.studies.shared_training import learning_key, take_over
from tests.small_runs import hsfl, numbers, tiny, tiny_words

CONTENDERS = ["hsfl", "splitfed_v1", "fsl", "fl"]
LEARNED = ("train_loss", "test_loss", "test_accuracy", "balanced_accuracy", "recall", "num_samples", "lr", "kept")


@pytest.mark.parametrize("name", CONTENDERS)
@pytest.mark.parametrize(
    "setting",
    [
        "train.drop_rate=0.4",
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("train.local_epochs=2", "fleet.min_cut=0")),
    ],
)
def test_taking_over_equals_training(name: str, setting: str, tmp_path: Path) -> None:
    cuts = "fleet.cuts=[0,2,5]" if setting == "fleet.min_cut=0" else "fleet.cuts=[1,2,5]"
    words = (setting, cuts, "train.rounds=3", "model.norm=none", "train.optimizer=sgd")
    train_run(tiny(*words), tmp_path / "trained")
    config = tiny(*words, f"framework={name}")
    train_run(config, tmp_path / "itself")
    take_over(tmp_path / "trained", config, tmp_path / "taken")
    for own, taken in zip(numbers(tmp_path / "itself"), numbers(tmp_path / "taken"), strict=True):
        for field in LEARNED:
            assert taken[field] == pytest.approx(own[field], rel=1e-4, abs=1e-4), field
        for field in set(own) - set(LEARNED):  # seconds, bytes, phases, cuts, who waits: exactly
            assert taken[field] == own[field], field


def test_who_learns_alike() -> None:
    assert len({learning_key(tiny(f"framework={name}")) for name in CONTENDERS}) == 1
    assert learning_key(tiny("framework=sl")) is None
    assert learning_key(tiny("train.tau_s=5")) is None
    assert learning_key(tiny("attack.kind=sign_flip")) is None, "what an attacker holds depends on its cut"
    assert learning_key(tiny("train.clip_norm=1", "fleet.cuts=2")) == learning_key(tiny("train.clip_norm=1"))
    assert learning_key(tiny("train.lr=0.1")) != learning_key(tiny())
    assert learning_key(tiny("seed=2")) != learning_key(tiny())
    assert learning_key(tiny("allocation.policy=proposed", "fleet.cuts=2")) == learning_key(tiny())


def test_sizes_of_a_model_change_what_is_learned() -> None:
    assert learning_key(tiny("options.gpt.depth=2")) != learning_key(tiny())
    assert learning_key(tiny("options.cpsl.clusters=3")) == learning_key(tiny())


def test_options_of_a_model_change_what_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    class Width(BaseModel):
        width: int = 8

    monkeypatch.setitem(OPTIONS, "own_cnn", Width)
    for kind, alike in (("model", False), ("policy", True)):
        monkeypatch.setitem(REGISTERED, (kind, "own_cnn"), "a file")
        some = {
            learning_key(tiny("options.fl.needs_storage=true", f"options.own_cnn.width={width}")) for width in (8, 9)
        }
        assert (len(some) == 1) is alike


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("settings", "status"),
    [
        pytest.param(["train.eval_every=2", "train.rounds=4"], "budget", marks=pytest.mark.slow),
        (["train.lr=1e6", "train.optimizer=sgd"], "diverged"),
    ],
)
def test_how_a_run_that_takes_over_ends(settings: list[str], status: str, tmp_path: Path) -> None:
    words = ["compare", *tiny_words(*settings), "-f", "hsfl", "-f", "fl", "--quiet"]
    assert hsfl(*words, "--train-once", "--out", tmp_path / "once").code == 0
    assert hsfl(*words, "--out", tmp_path / "each").code == 0
    once, each = (RunFolder(tmp_path / folder / "fl" / "seed-0") for folder in ("once", "each"))
    assert once.ended().status == each.ended().status == status
    tested = [[row.test_accuracy is None for row in folder.rounds()] for folder in (once, each)]
    assert tested[0] == tested[1]  # the last round is tested, whichever it is


@pytest.mark.usefixtures("undrawn")
@pytest.mark.slow  # the parts are above
def test_a_comparison_that_trains_once(tmp_path: Path) -> None:
    contenders = ["hsfl", "splitfed_v1", "fl", "sl", "heads=fsl,options.fsl.average=server"]
    words = [word for contender in contenders for word in ("-f", contender)]
    words = ["compare", *tiny_words("network.speed_std=0.3"), *words, "--seeds", "2", "--quiet"]
    assert hsfl(*words, "--train-once", "--out", tmp_path / "once").code == 0
    assert hsfl(*words, "--out", tmp_path / "each").code == 0
    for name in (contender.partition("=")[0] if "=" in contender else contender for contender in contenders):
        for seed in (0, 1):
            once, each = (numbers(tmp_path / folder / name / f"seed-{seed}") for folder in ("once", "each"))
            assert [row["sim_time_s"] for row in once] == [row["sim_time_s"] for row in each]
            assert [row["test_accuracy"] for row in once] == pytest.approx(
                [row["test_accuracy"] for row in each], abs=0.051
            )
    traces = {path.parent.parent.name for path in (tmp_path / "once").rglob("trace.json")}
    assert len(traces) == 2  # three learn alike: one is trained, two take over; FSL with heads of their own is trained
    assert traces < {"hsfl", "splitfed_v1", "fl"}
    before = {path: path.read_bytes() for path in (tmp_path / "once").rglob("rounds.jsonl")}
    assert hsfl(*words, "--train-once", "--out", tmp_path / "once").code == 0
    assert before == {path: path.read_bytes() for path in (tmp_path / "once").rglob("rounds.jsonl")}


@pytest.mark.usefixtures("undrawn")
def test_cuts_are_searched_once_for_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the check, the rounds that fit and the run itself; a framework with one cut for all searches none."""
    searched = []

    def search(request: CutRequest) -> CutChoice:
        searched.append(request)
        return descent(replace(request, settings=CutSettings(time_limit_s=1.0)))

    monkeypatch.setitem(METHODS, "descent", search)
    words = [
        "fleet.cuts=planned",
        "allocation.policy=proposed",
        "allocation.samples=2",
        "train.rounds=1",
        "train.budget_s=1e6",
    ]
    contenders = ["-f", "hsfl", "-f", "splitfed_v1", "-f", "fl"]
    command = ["compare", *tiny_words(*words), *contenders, "--train-once", "--seeds", 2, "--out", tmp_path]
    assert hsfl(*command).code == 0
    assert len(searched) == 2  # a seed each
    cuts = [RunFolder(tmp_path / "hsfl" / f"seed-{seed}").cuts() for seed in (0, 1)]
    assert [RunFolder(tmp_path / "hsfl" / f"seed-{seed}").rounds()[0].cuts for seed in (0, 1)] == [
        record.cuts for record in cuts if record is not None
    ]
    assert hsfl(*command).code == 0  # what is there is not searched again
    assert len(searched) == 2


def test_a_policy_with_a_rule_for_cuts_searches_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsfl.allocation.cuts.search.METHODS", {})
    for policy in ("scls", "cpsl", "rcls"):
        bench = prepare(tiny("fleet.cuts=planned", f"allocation.policy={policy}", "fleet.max_cut=[2, 3, 4]"))
        assert bench.plan_note is None
        assert policy != "scls" or bench.task.cuts == (2, 2, 2)
