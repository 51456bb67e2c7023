import dataclasses
import os
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hsfl.config import FleetConfig
from hsfl.data.registry import load_dataset
from hsfl.engines.engine import Inline
from hsfl.errors import InputError
from hsfl.framework_table import METHODS
from hsfl.models.zoo import build
from hsfl.planning.rounds import participation
from hsfl.runs import loop
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import raises
from tests.small_runs import numbers, read_strictly, tiny


class Diary(loop.Observer):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.samples = 0

    def run_starts(self, config, cuts, rounds_done):
        self.lines.append(f"run {list(cuts)} {rounds_done}")

    def round_starts(self, round_number, kept, num_samples):
        self.lines.append(f"round {round_number} {list(kept)} {num_samples}")

    def batch_starts(self, client, num_samples):
        self.samples += num_samples

    def evaluation_starts(self):
        self.lines.append("test")

    def round_ends(self, record):
        self.lines.append(f"end {record.round}")

    def run_ends(self):
        self.lines.append("over")


def test_a_run_leaves_a_folder_that_tells_it(tmp_path):
    diary = Diary()
    summary = loop.train_run(tiny("train.rounds=2", "train.local_epochs=2"), tmp_path / "run", observer=diary)
    records = RunFolder(tmp_path / "run").rounds()
    assert [record.round for record in records] == [1, 2]
    for record in records:
        assert record.framework == "hsfl"
        assert record.cuts == [1, 2, 5]
        assert record.kept == [0, 1, 2]
        assert record.num_samples == 120
        assert record.wall_s > 0
        assert record.lr == 0.01
        assert record.recall is not None
        assert len(record.recall) == 10
        assert all(count > 0 for count in record.bytes.values())
    assert summary.num_samples == diary.samples == 240
    assert summary.bytes == {link: 2 * count for link, count in records[0].bytes.items()}
    assert summary.test_accuracy == records[-1].test_accuracy
    assert summary.best_accuracy == max(record.test_accuracy for record in records)
    assert diary.lines == [
        "run [1, 2, 5] 0",
        *("round 1 [0, 1, 2] 120", "test", "end 1"),
        *("round 2 [0, 1, 2] 120", "test", "end 2"),
        "over",
    ]
    assert read_strictly(tmp_path / "run/summary.json") == [dataclasses.asdict(summary)]
    (environment,) = read_strictly(tmp_path / "run/environment.json")
    assert torch.__version__.startswith(environment["packages"]["torch"])  # +cu130 may follow
    assert not [name for _, _, names in os.walk(tmp_path) for name in names if name.startswith(".")]  # no scratch files


def test_training_learns(finished):
    accuracies = [record.test_accuracy for record in RunFolder(finished).rounds()]
    assert accuracies[-1] > 0.6 > accuracies[0]


def test_the_best_model_is_kept(tmp_path):
    """The first among equals. The rate is high, so that the best round is hardly the last."""
    changes = ("train.lr=0.1", "data.limit=300")
    summary = loop.train_run(tiny("train.rounds=4", *changes), tmp_path / "run")
    accuracies = [record.test_accuracy for record in RunFolder(tmp_path / "run").rounds()]
    best = accuracies.index(max(accuracies)) + 1
    assert (summary.best_round, summary.best_accuracy) == (best, max(accuracies))
    loop.train_run(tiny(f"train.rounds={best}", *changes), tmp_path / "until best")
    kept = (tmp_path / "run/model-best.safetensors").read_bytes()
    assert kept == (tmp_path / "until best/model.safetensors").read_bytes()
    assert (kept == (tmp_path / "run/model.safetensors").read_bytes()) == (best == 4)


def test_rounds_between_evaluations_have_no_accuracy(tmp_path):
    summary = loop.train_run(tiny("train.rounds=5", "train.eval_every=2"), tmp_path / "run")
    tested = [record.round for record in RunFolder(tmp_path / "run").rounds() if record.test_accuracy is not None]
    assert tested == [2, 4, 5]  # the last always
    assert summary.best_round in tested


@pytest.mark.parametrize("framework", ["hsfl", "splitfed_v2", "psl", "cpsl", "locfedmix_sl", "sl"])
def test_a_round_that_everybody_misses_changes_nothing(tmp_path, framework):
    config = tiny(f"framework={framework}", "train.drop_rate=1", "train.rounds=1")
    summary = loop.train_run(config, tmp_path / "run")
    (record,) = RunFolder(tmp_path / "run").rounds()
    assert (record.kept, record.train_loss, record.num_samples, summary.status) == ([], None, 0, "finished")
    first = prepare(config).task.initial.named()
    last = load_file(tmp_path / "run/model.safetensors")
    assert all(torch.equal(last[name], tensor) for name, tensor in first.items())


def test_who_takes_part():
    config = tiny("fleet.num_clients=20", "fleet.cuts=1", "train.clients_per_round=8", "train.drop_rate=0.25")
    rounds = [participation.choose_clients(config, index) for index in range(200)]
    assert rounds == [participation.choose_clients(config, index) for index in range(200)]
    assert all(list(kept) == sorted(set(kept)) and len(kept) <= 8 for kept in rounds)
    assert np.mean([len(kept) for kept in rounds]) == pytest.approx(6, abs=0.3)  # 8 * (1 - 0.25)
    counts = np.bincount(np.concatenate(rounds), minlength=20)
    assert counts.min() > 30  # 60 expected
    everyone = tiny("fleet.num_clients=20", "fleet.cuts=1")
    assert participation.choose_clients(everyone, 0) == tuple(range(20))


def test_where_clients_keep_their_heads_the_mean_is_recorded_and_exported(tmp_path):
    config = tiny("framework=fsl", "options.fsl.average=server", "train.rounds=1")
    loop.train_run(config, tmp_path / "run")
    bench = prepare(config)
    framework = loop.find_framework("fsl")(bench.task)
    state, _ = framework.round(framework.init(), [0, 1, 2], 0)
    models = [whole.clone() for whole in framework.models(state)]
    assert len(models) == 3
    (record,) = RunFolder(tmp_path / "run").rounds()
    engine = Inline()
    engine.attach(framework, bench.exam)
    assert record.test_accuracy == loop.assess(engine, framework, state).accuracy
    stored = load_file(tmp_path / "run/model.safetensors")
    for name, tensor in stored.items():
        if tensor.is_floating_point():
            mean = torch.stack([model.named()[name].double() for model in models]).mean(0)
            torch.testing.assert_close(tensor.double(), mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("framework", METHODS)
def test_a_diverging_run_says_so_in_valid_json(tmp_path, framework):
    changes = ("model.name=mlp", "fleet.cuts=2", "train.optimizer=sgd", "train.lr=1e6", "train.eval_every=9")
    config = tiny(f"framework={framework}", *changes, "train.batch_size=1000", "train.rounds=9")
    summary = loop.train_run(config, tmp_path / "run")
    assert summary.status == "diverged"
    assert summary.rounds == len(numbers(tmp_path / "run")) < 9
    assert read_strictly(tmp_path / "run/summary.json")[0]["status"] == "diverged"
    assert (tmp_path / "run/model.safetensors").exists()


def test_tensorboard_on_request(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    loop.train_run(tiny("train.rounds=2", "log.tensorboard=true"), tmp_path / "run")
    loop.train_run(tiny("train.rounds=1"), tmp_path / "plain")
    assert not (tmp_path / "plain/tensorboard").exists()
    events = reader.EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
    for name in ("train_loss", "test_accuracy"):
        points = [(scalar.step, scalar.value) for scalar in events.Scalars(name)]
        want = [(record["round"], pytest.approx(record[name])) for record in numbers(tmp_path / "run")]
        assert points == want
    assert "bytes/edge_main" in events.Tags()["scalars"]


def test_without_tensorboard_the_way_out_is_named_and_nothing_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with raises(InputError, 'pip install "tensorboard'):
        loop.train_run(tiny("log.tensorboard=true"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_data_set_and_a_model_of_ones_own(tmp_path):
    dataset = load_dataset("digits", image_size=8, limit=40)
    model = build("mlp", (1, 8, 8), 10, seed=3)
    summary = loop.train_run(tiny("fleet.cuts=1", "train.rounds=1"), tmp_path / "run", dataset=dataset, model=model)
    assert summary.num_samples == 40
    assert set(load_file(tmp_path / "run/model.safetensors")) == set(model.state_dict())


def test_images_are_resized_for_the_model(tmp_path):
    bench = prepare(tiny("model.input=[1, 16, 12]"))
    assert bench.test.shape == bench.task.feed.images.shape == (1, 16, 12)
    x, _, _ = next(bench.task.data(0).batches(0))
    assert x.shape[1:] == (1, 16, 12)


def cuts(seed=0, num_clients=3, **fleet):
    """Of the small CNN, which has five units."""
    config = tiny(f"seed={seed}", "data.limit=700")
    given = {"cuts": "max_cut"} | fleet
    return prepare(config.model_copy(update={"fleet": FleetConfig(num_clients=num_clients, **given)})).task.cuts


def test_cuts_are_given_or_as_deep_as_each_can():
    assert cuts(cuts=2) == (2, 2, 2)
    assert cuts(cuts=(1, 5, 3)) == (1, 5, 3)
    assert cuts(max_cut=4) == (4, 4, 4)
    assert cuts(max_cut=(2, 3, 4)) == (2, 3, 4)
    assert cuts(cuts=0, min_cut=0) == (0, 0, 0)
    drawn = cuts(num_clients=300)
    assert set(drawn) == {3, 4, 5}  # 3..num_units
    assert drawn == cuts(num_clients=300) != cuts(num_clients=300, seed=1)


@pytest.mark.parametrize(
    ("fleet", "parts"),
    [
        ({"cuts": 6}, ("fleet.cuts[0] is 6", "5 units", "up to 5")),
        ({"cuts": (1, 2, -1)}, ("fleet.cuts[2] is -1", "5 units")),
        ({"cuts": (1, 2)}, ("fleet.cuts has 2 numbers", "3 clients")),
        ({"cuts": (1, 0, 1)}, ("fleet.cuts[1] is 0", "fleet.min_cut = 1", "lower min_cut")),
        ({"cuts": 4, "max_cut": (4, 3, 4)}, ("fleet.cuts[1] is 4", "max_cut", "client 1 is 3", "lower the cut")),
        ({"max_cut": 6}, ("fleet.max_cut[0] is 6", "5 units")),
        ({"max_cut": (1, 2)}, ("fleet.max_cut has 2 numbers", "3 clients")),
        ({"min_cut": 6}, ("fleet.min_cut is 6", "5 units")),
        ({"min_cut": 3, "max_cut": 2}, ("fleet.max_cut[0] is 2", "fleet.min_cut = 3")),
    ],
)
def test_impossible_cuts(fleet, parts):
    with raises(InputError, *parts):
        cuts(**fleet)


@pytest.mark.parametrize("change", [("train.batch_size=1",), ("data.limit=3", "data.min_samples=1")])
def test_batchnorm_on_a_single_value_is_refused_before_it_fails(change):
    deep = ("model.name=resnet18", "data.image_size=16", "fleet.cuts=3", *change)
    with raises(InputError, "BatchNorm", "one sample"):
        prepare(tiny(*deep))
    prepare(tiny(*deep, "model.norm=group"))
    prepare(tiny("model.norm=none", *change))
