"""Law: a deployment of real processes on loopback equals the simulation with the same seed, cuts and threads, to the bit."""

from pathlib import Path
from typing import Any

import pytest

from hsfl.config import parse_config
from hsfl.runs import loop
from hsfl.runs.replay import replay_run
from tests.deploy.fleet import RUN, changed, fleet
from tests.small_runs import read_strictly

SAME = (
    "round",
    "framework",
    "num_samples",
    "train_loss",
    "test_loss",
    "test_accuracy",
    "recall",
    "lr",
    "cuts",
    "kept",
    "bytes",
    "codecs",
    "coded",
)


def assert_same(run: dict, deployed: Path, simulated: Path) -> None:
    loop.train_run(parse_config(run), simulated)
    for name in ("model.safetensors", "model-best.safetensors"):
        assert (deployed / name).read_bytes() == (simulated / name).read_bytes(), name
    ours, theirs = (read_strictly(folder / "rounds.jsonl") for folder in (deployed, simulated))
    assert [{name: line.get(name) for name in SAME} for line in ours] == [
        {name: line.get(name) for name in SAME} for line in theirs
    ]
    assert all(took_s > 0 for line in ours for took_s in line["measured"]["client"])
    report = replay_run(deployed)
    assert report.agrees, report
    assert report.unchecked == []


def assert_law(folder: Path, run: dict, names: tuple[str, ...]) -> None:
    with fleet(folder, run, names=names) as there:
        there.start_all()
        assert there.wait() == 0, there.logs()
    assert "measured / modelled" in (there.out / "report.html").read_text()
    assert_same(there.run, there.out, folder / "simulated")


def test_hsfl_on_loopback_is_the_simulation(tmp_path: Path) -> None:
    """Four processes: most of the time is theirs to start. Rounds end in the middle of a pass. Unit 0 is the edge server's, 1 and 2 are common, 3 and 4 the main server's."""
    run = changed(RUN, data={"limit": 48}, fleet={"num_clients": 2, "cuts": [1, 3]}, train={"local_epochs": 0.4})
    assert_law(tmp_path, run, ("ada", "bo"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "link",
    [
        {"up": "int8", "down": "int8"},
        {"up": "topk:0.2", "down": "float16"},
        {"codecs": ["topk:0.2/int8", "float16"]},
        {"model": "int8"},
        {"up": "int8", "down": "int8", "model": "float16"},
    ],
    ids=["int8", "topk", "mixed", "heads", "all"],
)
def test_with_codecs_too(tmp_path: Path, link: dict[str, Any]) -> None:
    run = changed(RUN, data={"limit": 48}, fleet={"num_clients": 2, "cuts": [1, 3]}, train={"rounds": 3}, link=link)
    assert_law(tmp_path, run, ("ada", "bo"))


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["int8", "float16"])
def test_with_coded_heads_of_whole_models_too(tmp_path: Path, codec: str) -> None:
    run = changed(
        RUN, data={"limit": 48}, fleet={"num_clients": 2, "cuts": 2}, train={"rounds": 3}, link={"model": codec}
    )
    assert_law(tmp_path, run | {"framework": "fl"}, ("ada", "bo"))


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "cuts"), [("hsfl", [1, 2, 3, 5]), ("splitfed_v1", 2), ("fl", 2)])
def test_four_clients_and_other_frameworks_too(tmp_path: Path, framework: str, cuts: object) -> None:
    run = changed(RUN, fleet={"cuts": cuts}) | {"framework": framework}
    assert_law(tmp_path, run, ("ada", "bo", "cy", "di"))


@pytest.mark.slow
def test_mnist_too_whose_files_have_the_channels_last(tmp_path: Path, data_dir: Path) -> None:
    """Kernels take another way with such images, and with what they make of them, which crosses the cut."""
    assert_law(tmp_path, changed(RUN, data={"name": "mnist"}, fleet={"num_clients": 2, "cuts": [1, 3]}), ("ada", "bo"))
