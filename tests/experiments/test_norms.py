"""The study of BatchNorm's statistics tests saved models: as a run would have tested them, and without training again."""

import copy
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hsfl.config import with_changes
from hsfl.experiments import norms
from hsfl.experiments.norms import NormTest, NormTraining, points_lost, pooled, read_tests, training_config, write_tests
from hsfl.experiments.study_request import StudyRequest
from hsfl.runs.loop import train_run
from hsfl.runs.run_folder.folder import RunFolder
from tests.laws.bench import make_task
from tests.naming import names
from tests.small_runs import hsfl, refused

ALONE = {"0.1": norms.SPREADS["0.1"]}
WORDS = ("reproduce", "norms", "--scale", "smoke", "--datasets", "digits", "--quiet", "--out")


@pytest.fixture
def one_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "SPREADS", ALONE)


def made(out: Path, name: str = "twins", scale: str = "smoke", spread: str = "0.1", seed: int = 1) -> NormTraining:
    return NormTraining("digits", name, spread, seed, training_config("digits", scale, name, spread, seed), out)


@pytest.mark.parametrize("batch_size", [16, 5])
def test_pooled_statistics_are_those_of_all_samples_whoever_holds_them(
    batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: a copy of the model in training mode, as torch has it, sees all samples of all clients in one batch. In several batches
    the first layer still sees the same values; later layers see values that were normalised by batch."""
    monkeypatch.setattr(norms, "POOLED_BATCH", batch_size)
    task = make_task([2, 5, 1], [4, 3, 9], dtype=torch.float64)
    model, inputs = copy.deepcopy(task.model).train(), dict[str, torch.Tensor]()
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.BatchNorm2d)}
    for name, layer in layers.items():
        layer.register_forward_pre_hook(lambda _, given, name=name: inputs.update({name: given[0]}))
    model(task.feed.images.floats(task.feed.images.x[np.concatenate(list(task.feed.indices))]))
    before, after = task.initial.clone(), pooled(task, task.initial, 0).named()
    assert len(inputs) == len(layers) > 2
    for name, seen in list(inputs.items())[: None if batch_size == 16 else 1]:
        values = seen.transpose(0, 1).flatten(1)
        torch.testing.assert_close(after[f"{name}.running_mean"], values.mean(1), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(after[f"{name}.running_var"], values.var(1), rtol=1e-9, atol=1e-10)
    assert torch.equal(before.floats, task.initial.floats)


@pytest.mark.usefixtures("one_spread")
def test_saved_models_are_tested_as_a_run_tests_them_and_again_without_training(tmp_path: Path) -> None:
    assert hsfl(*WORDS, tmp_path).code == 0
    out = tmp_path / "norms"
    file = out / "norms-smoke.csv"
    before = file.read_bytes()
    for name in norms.FRAMEWORKS:
        training = made(out, name)
        found = training.known(read_tests(file))
        assert [*found] == training.rounds == [1, 2, 3]
        own = RunFolder(training.run_path).rounds()[-1]
        assert (found[3].averaged, found[3].averaged_loss) == (own.test_accuracy, own.test_loss)
        train_run(with_changes(training.config, ["train.norm_statistics=estimated"]), tmp_path / name)
        own = RunFolder(tmp_path / name).rounds()[-1]
        assert (found[3].estimated, found[3].estimated_loss) == (own.test_accuracy, own.test_loss)
        assert len({found[3].averaged_loss, found[3].estimated_loss, found[3].pooled_loss}) == 3
    assert {"norms.md", "norms.png", "norms.pdf", "norms.svg"} <= {path.name for path in out.iterdir()}
    records = [path.stat().st_mtime_ns for path in out.rglob("rounds.jsonl")]
    made(out).tests_path.unlink()
    assert hsfl(*WORDS, tmp_path).code == 0
    assert [path.stat().st_mtime_ns for path in out.rglob("rounds.jsonl")] == records
    assert file.read_bytes() == before
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    (shipped / file.name).write_bytes(before)
    assert hsfl(*WORDS, tmp_path / "again", "--results", shipped).code == 0
    assert not (tmp_path / "again" / "norms" / "runs").exists()
    assert (tmp_path / "again" / "norms" / file.name).read_bytes() == before
    made(out).tests_path.unlink()
    (made(out).run_path / "models" / "round-2.safetensors").unlink()
    names(refused(*WORDS, tmp_path), "round-2.safetensors", "this run")
    (shipped / file.name).write_text(before.decode().replace(f",{found[3].pooled_loss}", ",nan"))
    names(refused(*WORDS, tmp_path / "once more", "--results", shipped), file.name, "read")
    assert "another scale" in refused(*[str(word).replace("smoke", "quick") for word in WORDS], tmp_path)


def test_tests_of_other_settings_do_not_count(tmp_path: Path) -> None:
    training = made(tmp_path)
    numbers = (0.1, 0.2, 0.3, 3.0, 2.0, 1.0)
    tests = [NormTest("digits", "twins", "0.1", 1, training.settings, number, *numbers) for number in (1, 2, 3, 4)]
    assert read_tests(write_tests(tmp_path / "tests.csv", tests)) == tests
    assert [*training.known(tests)] == [1, 2, 3]
    assert training.known([replace(tests[0], settings="0")]) == {}
    assert len({made(tmp_path, *words).settings for words in
                [("twins",), ("splitfed_v2",), ("twins", "quick"), ("twins", "full"), ("twins", "smoke", "iid")]}) == 5  # fmt: skip
    others = [made(tmp_path, "splitfed_v2"), made(tmp_path, seed=2), made(tmp_path, spread="iid")]
    assert not any(other.known(tests) for other in others)
    cut = replace(training, config=with_changes(training.config, ["fleet.cuts=2"]))
    assert cut.settings == training.settings  # twins learn the same at any cut
    assert points_lost(tests, "twins", "0.1")[1] == pytest.approx(np.full((1, 4), 20.0))


def test_the_full_study_is_the_one_that_was_asked_for() -> None:
    config = training_config("cifar10", "full", "twins", "0.1", 1)
    assert (config.data.limit, config.train.rounds, config.data.alpha, config.model.norm) == (10_000, 20, 0.1, "batch")
    assert config.train.norm_statistics == "averaged"  # of the models that are kept
    assert [*norms.SPREADS] == ["0.1", "0.5", "iid"]
    assert norms.seeds_of("full", None) == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.usefixtures("one_spread")
def test_two_jobs_give_the_same_tests(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    for jobs in (1, 2):
        out = tmp_path / str(jobs)
        norms.reproduce_norms(StudyRequest(out, "smoke", 2, lambda text: None, datasets=["digits"], jobs=jobs))
    one, two = (read_tests(tmp_path / name / "norms-smoke.csv") for name in ("1", "2"))
    assert [astuple(test) for test in one] == [astuple(test) for test in two]
    assert len(one) == 12
