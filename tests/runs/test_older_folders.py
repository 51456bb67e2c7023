"""A folder that the version before the rooms were put in order made (commit 06c1426) is read as if it were today's.

`tests/fixtures/run-06c1426` was made there, without its page, by

    hsfl run demo --framework fsl --set data.limit=60 --set data.limit_test=30 --set model.name=cnn --set model.norm=none
      --set data.image_size=8 --set fleet.num_clients=3 --set train.batch_size=8 --set train.lr=0.01
      --set options.fsl_average=server --set fleet.cuts=[1,2,3] --set train.rounds=2

`run-06c1426-three-rounds.jsonl` holds the rounds of the same run with train.rounds=3, and `settings-table1.json` what
`hsfl reproduce table1 --scale smoke` kept of its settings. All three have options in the older spelling.
"""

import json
import shutil
from pathlib import Path

import pytest
from tests.report.fabricated import data_in
from tests.small_runs import hsfl, numbers, read_strictly

from hsfl.config import parse_config
from hsfl.errors import InputError
from hsfl.experiments import table1_study
from hsfl.experiments.shared import claim
from hsfl.runs.folder import RunFolder

FIXTURES = Path(__file__).parents[1] / "fixtures"
QUALITY = ("train_loss", "test_loss", "test_accuracy", "balanced_accuracy")


@pytest.fixture
def older(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / "run-06c1426", tmp_path / "run"))


def test_it_is_read(older: Path) -> None:
    folder = RunFolder(older)
    assert "fsl_average" in (older / "config.json").read_text()
    assert folder.config().options.fsl.average == "server"
    assert folder.config() == parse_config(json.loads((older / "config.json").read_text()))
    assert [record.round for record in folder.rounds()] == [1, 2]
    assert folder.cuts() is None
    clients = folder.clients()
    assert clients is not None
    assert clients.cuts == [1, 1, 1]  # FSL has one cut for all


def test_it_is_reported(older: Path) -> None:
    answer = hsfl("report", older)
    assert (answer.code, answer.err) == (0, "")
    (run,) = data_in(older / "report.html")["runs"]
    assert (run["num_rounds"], run["framework_name"], run["status"]) == (2, "FSL", "finished")
    assert run["best_accuracy"] == RunFolder(older).rounds()[1].test_accuracy


@pytest.mark.parametrize("which", ["last", "best"])
def test_it_is_evaluated(older: Path, which: str) -> None:
    """To what `hsfl evaluate` said then; the best round was the last."""
    quality = hsfl("evaluate", older, "--which", which, "--json").json()
    assert quality["loss"] == pytest.approx(2.263175, rel=1e-5)
    assert quality["accuracy"] == pytest.approx(8 / 30)
    assert quality["recall"] == pytest.approx([0, 0, 0, 2 / 3, 1, 0, 2 / 3, 0, 0, 1 / 3])
    assert hsfl("export", older, "--which", which, "--to", older / "out.safetensors").code == 0


def test_it_goes_on_as_it_would_have_then(older: Path) -> None:
    """The clients' own heads come from the checkpoint; with averaged heads the third round would learn something else."""
    answer = hsfl("run", "--resume", "--out", older, "--set", "train.rounds=3", "--quiet", "--json")
    assert answer.code == 0, answer
    then = read_strictly(FIXTURES / "run-06c1426-three-rounds.jsonl")
    now = numbers(older)
    assert now[:2] == [record | {"wall_s": None} for record in then[:2]]
    for name in (*QUALITY, "round_s", "sim_time_s"):
        assert now[2][name] == pytest.approx(then[2][name], rel=1e-4), name
    for name in ("bytes", "cuts", "started", "kept", "dropped", "num_samples", "lr"):
        assert now[2][name] == then[2][name], name


def test_settings_of_a_study_are_compared_as_they_are_read(tmp_path: Path) -> None:
    """Older spellings equal today's, and a field that is not there has its default; another value is refused."""
    wanted = table1_study.settings("smoke")
    stored = json.loads((FIXTURES / "settings-table1.json").read_text())
    assert "fsl_average" in stored["configs"]["mnist"]["options"]
    stored["fleets"] = wanted["fleets"]  # the smoke scale had another number of fleets then
    del stored["configs"]["mnist"]["train"]["eval_every"]  # as if the field were new
    (tmp_path / "settings.json").write_text(json.dumps(stored))
    claim(tmp_path, wanted)
    stored["configs"]["mnist"]["train"]["lr"] = 0.5
    (tmp_path / "settings.json").write_text(json.dumps(stored))
    with pytest.raises(InputError, match="holds results with another configs"):
        claim(tmp_path, wanted)
