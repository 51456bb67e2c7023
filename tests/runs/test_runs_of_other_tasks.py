"""Runs that learn something else than classes: tokens, numbers, labels, classes of pixels; in every framework, with records and pages of their metric."""

import csv
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hsfl
from hsfl.config import read_config
from hsfl.deploy.model_kit import make_kit
from hsfl.errors import InputError
from hsfl.framework_table import METHODS
from hsfl.report.comparison_summary import gain_sentences, read_comparison
from hsfl.runs.checks.unused_settings import refuse_unused
from hsfl.runs.export import evaluate_folder, export_folder
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import names, raises
from tests.plugins.files import unload
from tests.small_runs import hsfl as command
from tests.small_runs import refused

TEXT = [
    *("model.name=gpt", "options.gpt.width=8", "options.gpt.depth=1", "options.gpt.heads=2", "data.name=pydoc"),
    *(
        "data.block=8",
        "data.limit=24",
        "data.limit_test=10",
        "fleet.num_clients=3",
        "fleet.max_cut=3",
        "fleet.cuts=[1, 2, 3]",
    ),
    *("train.rounds=1", "train.batch_size=4", "train.lr=0.01"),
]
TABLE = [
    *("model.name=mlp", "fleet.num_clients=3", "fleet.cuts=[1, 2, 3]", "train.rounds=2", "train.batch_size=8"),
    "train.lr=0.02",
]


MAPS = ["fleet.num_clients=3", "fleet.cuts=[1, 2, 4]", "train.rounds=1", "train.batch_size=8", "train.lr=0.01"]


@pytest.fixture(autouse=True)
def _no_plugins():
    yield
    unload()


def table(task: str = "regression", num: int = 80):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num, 4))
    y = x @ np.array([1.0, -2.0, 3.0, 0.5])
    targets = {"regression": y, "multi_label": np.stack([y > 0, x[:, 0] > 0], axis=1)}
    return hsfl.dataset(x, targets[task], task=task, clients=rng.integers(0, 3, num))


def maps(num: int = 60, channels: int = 1):
    """Bright pixels are of class 2 within bright neighbours, else of class 1."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (num, channels, 8, 8))
    bright = x[:, 0] > 128
    y = np.where(bright & np.roll(bright, 1, axis=2), 2, bright)
    return hsfl.dataset(x, y, task="segmentation", clients=rng.integers(0, 3, num))


class Skipping(nn.Module):
    """A skip crosses all cuts but the last."""

    def __init__(self, channels: int = 1, num_classes: int = 3) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(channels, 4, 3, padding=1), nn.Conv2d(4, 6, 2, 2)
        self.up, self.last = nn.ConvTranspose2d(6, 4, 2, 2), nn.Conv2d(8, num_classes, 3, padding=1)

    def forward(self, x):
        x = self.first(x).relu()
        return self.last(torch.cat([x, self.up(self.down(x).relu())], 1))


@cache
def skipping(channels: int = 1):
    torch.manual_seed(3)
    return hsfl.split(Skipping(channels), torch.zeros(2, channels, 8, 8), most_tensors=2)


def run(folder, words, framework="hsfl", **more):
    """A run of a framework; it is given no setting of cuts that it does not look at."""
    if METHODS[framework].timing.cut != "any":
        unread: tuple[str, ...] = ("fleet.cuts", "fleet.max_cut")
    else:
        unread = ("fleet.cuts",) if any(word.startswith("fleet.one_cut") for word in words) else ()
    words = [word for word in words if not word.startswith(unread)]
    return hsfl.run(None, folder, [*words, f"framework={framework}"], report=False, **more)


def test_hsfl_fl_and_splitfed_v1_learn_the_same_text(tmp_path):
    """A cut changes no number, whatever is learned."""
    frameworks = {"hsfl": [], "fl": [], "splitfed_v1": ["fleet.one_cut=2"]}
    states = {}
    for name, words in frameworks.items():
        result = run(tmp_path / name, [*TEXT, "train.rounds=2", "model.dropout=0.1", *words], name)
        states[name] = load_file(result.folder / "model.safetensors")
        assert result.metric == "perplexity"
    for name in ("fl", "splitfed_v1"):
        for key, tensor in states["hsfl"].items():
            assert torch.allclose(tensor, states[name][key], atol=1e-6), (name, key)


@pytest.mark.parametrize("framework", METHODS)
def test_every_framework_trains_on_tokens_or_says_why_not(framework, tmp_path):
    if framework == "locfedmix_sl":
        with raises(InputError, "pydoc", "tokens"):
            run(tmp_path / "run", TEXT, framework)
        return
    result = run(tmp_path / "run", TEXT, framework)
    assert result.metrics["perplexity"] < 256 * 1.1
    assert result.test_accuracy is None


def test_hsfl_fl_and_splitfed_v1_learn_the_same_maps(tmp_path):
    """A cut changes no number where two tensors cross it, and workers count the same pixels."""
    frameworks = {"hsfl": [], "fl": [], "splitfed_v1": ["fleet.one_cut=2"]}
    results = {}
    for name, words in frameworks.items():
        result = run(tmp_path / name, [*MAPS, "train.rounds=2", *words], name, data=maps(), model=skipping())
        results[name] = load_file(result.folder / "model.safetensors"), result.metrics
        assert result.metric == "mean_iou"
        assert list(result.metrics) == ["mean_iou", "pixel_accuracy"]
    for name in ("fl", "splitfed_v1"):
        assert results[name][1] == results["hsfl"][1]
        for key, tensor in results["hsfl"][0].items():
            assert torch.allclose(tensor, results[name][0][key], atol=1e-6), (name, key)


@pytest.mark.parametrize("framework", METHODS)
def test_every_framework_trains_on_maps(framework, tmp_path):
    result = run(tmp_path / "run", MAPS, framework, data=maps(), model=skipping())
    assert 0 < result.metrics["mean_iou"] < result.metrics["pixel_accuracy"] < 1
    assert result.test_accuracy is None


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["hsfl", "fl"])
def test_workers_count_the_same_pixels(framework, tmp_path):
    words = [*MAPS, "train.rounds=2", "data.partition=given"]
    inline, workers = (
        run(tmp_path / engine, [*words, f"engine.name={engine}"], framework, data=maps(), model=skipping())
        for engine in ("inline", "workers")
    )
    assert inline.metrics == workers.metrics


def test_notes_about_maps(tmp_path):
    """Targets that are large beside the smashed data, and classes that no test pixel has."""
    data = maps()
    given = ["data.name=own", "data.partition=given"]
    notes = prepare(read_config(None, [*MAPS, *given]), data, skipping()).notes
    names(notes[0], "targets of 64 B", "1.024 kB or more", "neither counted nor timed")
    whole = prepare(read_config(None, ["framework=fl", *MAPS[:1], *MAPS[2:], *given]), data, skipping())
    assert whole.notes == ()
    absent = replace(data, test_y=np.minimum(data.test_y, 1), classes=("dark", "bright", "within"))
    assert "no test sample has pixels of within" in prepare(whole.task.config, absent, skipping()).notes[0]


def test_colour_images_and_their_maps_move_together(tmp_path):
    words = [*MAPS, "data.augment=flip_crop"]
    assert run(tmp_path / "run", words, data=maps(channels=3), model=skipping(3)).metrics["mean_iou"] > 0


def test_a_task_like_segmentation(tmp_path):
    """A metric of a plugin is a number for each sample, whatever the shape of its targets."""

    def found(output, target):
        return (output.argmax(1) == target).flatten(1).float().mean(1)

    hsfl.register_task("mine", like="segmentation", metrics={"found": found})
    result = run(tmp_path / "run", [*MAPS, "train.task=mine"], data=maps(), model=skipping())
    assert result.metrics["found"] == pytest.approx(result.metrics["pixel_accuracy"])


def test_wrong_settings_of_maps_are_one_line(tmp_path):
    for words, parts in [
        (["data.partition=dirichlet"], ("dirichlet", "segmentation", "iid")),
        (["train.loss=cross_entropy"], ("'cross_entropy'", "segmentation", "pixel_cross_entropy")),
        (["train.task=classification"], ("'classification'", "segmentation")),
        (["model.input=[1, 16, 16]"], ("model.input", "each pixel", "leave it out")),
        (["data.image_size=16"], ("data.image_size is 16", "each pixel")),
    ]:
        with raises(InputError, *parts):
            run(tmp_path / "run", [*MAPS, *words], data=maps(), model=skipping())
    with raises(InputError, "(3,)", "(3, 8, 8)", "last unit"):
        run(tmp_path / "run", [*MAPS, "fleet.cuts=1", "model.name=mlp"], data=maps())
    with raises(InputError, "segmentation", "simulated", "real machines"):
        make_kit(read_config(None, ["train.task=segmentation"]), (1, 8, 8), 3)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("framework", ["splitfed_v2", "psl", "sl", "hsfl"])
def test_raw_tokens_travel_at_a_cut_of_0(framework, tmp_path):
    sent = run(tmp_path / "run", [*TEXT, "fleet.min_cut=0", "fleet.cuts=[0, 0, 0]"], framework).bytes
    assert sent["client_main_up"] == 24 * 8 * 8  # tokens of eight bytes
    assert sent["client_main_down"] == 0


@pytest.mark.parametrize("framework", ["hsfl", "locfedmix_sl", "cl"])
def test_a_table_of_numbers(framework, tmp_path):
    result = run(tmp_path / "run", [*TABLE, "data.partition=quantity_skew"], framework, data=table())
    assert list(result.metrics) == ["mean_absolute_error", "mean_squared_error", "r2"]
    assert result.best == min(record.metrics["mean_absolute_error"] for record in result.records())


def test_labels_and_another_loss(tmp_path):
    result = run(tmp_path / "run", [*TABLE, "data.partition=given"], data=table("multi_label"))
    assert result.metrics["micro_f1"] > 0.5
    mae = run(tmp_path / "mae", [*TABLE, "train.loss=mae"], data=table())
    assert mae.records()[-1].test_loss == pytest.approx(mae.metrics["mean_absolute_error"], rel=1e-5)


@pytest.mark.slow
def test_workers_compute_the_same(tmp_path):
    inline, workers = (run(tmp_path / engine, [*TEXT, f"engine.name={engine}"]) for engine in ("inline", "workers"))
    assert inline.metrics == workers.metrics


def test_folder_export_and_evaluation(tmp_path):
    result = run(tmp_path / "run", TEXT)
    again, classes = evaluate_folder(tmp_path / "run")
    assert (again.metrics, classes) == (result.metrics, ())
    assert "last model: perplexity" in command("evaluate", tmp_path / "run").out
    path = export_folder(tmp_path / "run", "torchscript")
    assert torch.jit.load(str(path))(torch.zeros(5, 8, dtype=torch.int64)).shape == (5, 8, 256)
    assert RunFolder(tmp_path / "run").metrics()[0].name == "perplexity"
    (tmp_path / "run" / "task.json").write_text('{"name": "x", "metrics": []}')
    with pytest.raises(InputError, match=r"task\.json"):
        RunFolder(tmp_path / "run").metrics()


def test_a_run_goes_on_with_its_best_round(tmp_path):
    whole = run(tmp_path / "whole", [*TABLE, "train.rounds=3", "train.eval_every=1"], data=table())
    run(tmp_path / "parts", [*TABLE, "train.rounds=1"], data=table())
    parts = hsfl.run(None, tmp_path / "parts", [*TABLE, "train.rounds=3"], data=table(), resume=True, report=False)
    assert (parts.best, parts.best_round, parts.metrics) == (whole.best, whole.best_round, whole.metrics)


def test_the_page_and_the_tables_show_the_metric(tmp_path):
    comparison = hsfl.compare(
        None, ["hsfl", "fl"], tmp_path / "out", [*TABLE, "train.budget_s=1e9"], data=table(), target=2.0
    )
    first = comparison.to_markdown()
    assert "**Mean absolute error" in first
    assert "seconds to mean absolute error 2" in first
    assert "mean absolute error (less is better)" in first
    result = comparison.results[0]
    assert (result.final_accuracy.mean, result.metric) == (None, "mean_absolute_error")
    assert result.best.mean <= result.final.mean
    assert any("mean absolute error: HSFL " in line for line in gain_sentences(read_comparison(tmp_path / "out")))
    page = (tmp_path / "out" / "report.html").read_text()
    assert '"title":"mean absolute error"' in page.replace('": "', '":"')
    with (tmp_path / "out" / "rounds.csv").open() as file:
        assert float(next(csv.DictReader(file))["r2"]) < 1


def test_a_sweep_takes_the_metric_of_the_task(tmp_path):
    few = [word for change in TEXT for word in ("--set", change)]
    answer = command("sweep", "train.lr=0.001,0.01", *few, "--out", tmp_path / "out", "--json", "--quiet")
    assert answer.code == 0, answer.err
    assert {"final_perplexity", "best_token_accuracy"} <= answer.json()["runs"][0].keys()


def test_a_plugin_brings_a_task(tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "import hsfl\n"
        "def over(output, target):\n    return ((output - target).clamp(min=0) + 0.1 * (target - output).clamp(min=0)).mean()\n"
        "def above(output, target):\n    return (output > target).float().mean(dim=1)\n"
        "hsfl.register_task('over', like='regression', loss=over, metrics={'above': above}, less_is_better=['above'])\n"
    )
    np.savez(tmp_path / "own.npz", x=np.random.default_rng(0).normal(size=(40, 3)), y=np.arange(40.0))
    words = [*TABLE, f"data.name=npz:{tmp_path / 'own.npz'}", "train.task=over"]
    result = run(tmp_path / "run", words, plugins=[plugin])
    assert result.metric == "above"
    unload()
    assert not RunFolder(tmp_path / "run").metrics()[0].higher_is_better  # told without the plugin
    assert json.loads((tmp_path / "run" / "plugins.json").read_text())["plugins"][0]["gives"] == ["task over"]


def test_wrong_settings_are_one_line(tmp_path):
    few = [word for change in TEXT for word in ("--set", change)]
    for changes, parts in [
        (["data.partition=dirichlet"], ("data.partition is 'dirichlet'", "next_token has no class", "iid")),
        (["train.task=regression"], ("train.task is 'regression'", "the data are text")),
        (["train.loss=mse"], ("train.loss is 'mse'", "next_token", "choose cross_entropy")),
        (["train.task=next"], ("task 'next'", "choose one of")),
        (["model.name=mlp", "options.gpt={}"], ("samples of (8,)", "change unit")),
        (["data.augment=flip_crop"], ("data.augment is 'flip_crop'", "shape (8,)")),
        (["data.image_size=32"], ("data.image_size is 32", "not images")),
        (["options.gpt.heads=3"], ("options.gpt.width is 8", "3 heads")),
    ]:
        words = [word for change in changes for word in ("--set", change)]
        names(refused("run", *few, *words, "--out", tmp_path / "run", "--quiet"), *parts)
    names(refused("compare", "--target", "60", "--out", tmp_path / "c"), "target is 60.0", "accuracy")
    with raises(InputError, "next_token", "simulated", "real machines"):
        make_kit(read_config(None, TEXT), (8,), 256)
    with raises(InputError, "gpt", "resnet18"):
        refuse_unused(None, ["options.gpt.width=8"], [read_config(None, ["options.gpt.width=8"])])


def test_a_model_that_gives_too_few_numbers(tmp_path):
    ids = np.arange(48).reshape(12, 4)
    small = [nn.Embedding(40, 4), nn.Linear(4, 40)]
    with raises(InputError, "tokens up to 48", "tokenizer"):
        run(tmp_path / "a", TABLE[1:], data=hsfl.dataset(ids, ids + 1, task="next_token"), model=small)
    with raises(InputError, "(2,)", "1 columns of targets"):
        run(tmp_path / "b", TABLE[1:], data=table(), model=[nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)])
    hsfl.register_task("rows", like="regression", loss=lambda output, target: (output - target).abs().mean(dim=1))
    with raises(InputError, "task 'rows'", "tensor"):
        run(tmp_path / "c", [*TABLE, "train.task=rows"], data=table())
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_a_text_is_learned(tmp_path):
    """Bytes of Python's help texts: far below 256, and below what the frequencies of bytes alone would give (27.6)."""
    result = hsfl.run("gpt-text", tmp_path / "run", ["data.limit=2000", "train.rounds=4"], report=False)
    assert result.best < 20


@pytest.mark.slow
def test_a_table_is_learned(tmp_path):
    result = run(tmp_path / "run", [*TABLE, "train.rounds=20"], data=table(num=400))
    assert result.metrics["r2"] > 0.95


@pytest.mark.slow
def test_images_are_learned_by_a_transformer(tmp_path):
    words = [
        "model.name=vit",
        "options.vit.width=32",
        "options.vit.depth=2",
        "data.image_size=16",
        "train.batch_size=16",
    ]
    words += ["fleet.num_clients=3", "fleet.max_cut=4", "fleet.cuts=[1, 2, 4]", "train.rounds=6", "train.lr=0.003"]
    assert run(tmp_path / "run", words).best > 0.7
