"""Law: a deployment of real processes on loopback equals the simulation with the same seed, cuts and threads, to the bit."""

from pathlib import Path

import pytest

from hsfl.config import parse_config
from hsfl.runs import loop
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
)


def assert_same(run: dict, deployed: Path, simulated: Path) -> None:
    loop.run(parse_config(run), simulated)
    for name in ("model.safetensors", "model-best.safetensors"):
        assert (deployed / name).read_bytes() == (simulated / name).read_bytes(), name
    ours, theirs = (read_strictly(folder / "rounds.jsonl") for folder in (deployed, simulated))
    assert [{name: line[name] for name in SAME} for line in ours] == [
        {name: line[name] for name in SAME} for line in theirs
    ]
    assert all(took_s > 0 for line in ours for took_s in line["measured"]["client"])


def test_hsfl_on_loopback_is_the_simulation(tmp_path: Path) -> None:
    with fleet(tmp_path, RUN) as there:
        there.start_all()
        assert there.wait() == 0, there.logs()
    assert_same(there.run, there.out, tmp_path / "simulated")


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["splitfed_v1", "fl"])
def test_other_frameworks_too(tmp_path: Path, framework: str) -> None:
    run = changed(RUN, fleet={"cuts": 2}) | {"framework": framework}
    with fleet(tmp_path, run) as there:
        there.start_all()
        assert there.wait() == 0, there.logs()
    assert_same(there.run, there.out, tmp_path / "simulated")
