"""HSFL from Python: configs by name, settings by list or keyword, data and models of one's own, and what is wrong."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hsfl as package
from hsfl.api.arguments import arguments_of_call, contender_texts
from hsfl.api.sweep_calls import _words
from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.models.split.graph_split import split
from hsfl.runs import loop
from hsfl.runs.client_data import survey
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import names, raises
from tests.small_runs import assert_same_run, hsfl, numbers, refused, tiny

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 6))
Y = (X[:, 0] > 0) + 2 * (X[:, 1] > 0)
WHO = np.array(["north", "south", "west"])[RNG.integers(0, 3, 90)]
SMALL: dict[str, Any] = {
    "fleet": {"num_clients": 3, "cuts": 1},
    "train": {"rounds": 2, "batch_size": 16, "lr": 0.02},
}
TABLE = "a,b,c,kind,place\n" + "".join(f"{x[0]:.4f},{x[1]:.4f},{x[2]:.4f},k{y},{who}\n" for x, y, who in zip(X, Y, WHO))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def config_of(*words: Any, **named: Any) -> RunConfig:
    given = {name: named.pop(name, None) for name in ("data", "model")}
    return arguments_of_call(*words, given["data"], given["model"], (), named).config


# --- configs and settings


def test_settings_by_list_and_by_keyword_are_one_config(tmp_path: Path) -> None:
    listed = config_of("demo", ["train.rounds=3", "framework=fl", "fleet.cuts=[1, 2]", "data.limit=50"])
    named = config_of(
        "demo", (), framework="fl", train={"rounds": np.int64(3)}, fleet={"cuts": (1, 2)}, data={"limit": 50}
    )
    assert listed == named
    nested = {"train": {"rounds": 3}, "framework": "fl", "fleet": {"cuts": [1, 2]}, "data.limit": 50}
    assert config_of("demo", nested) == config_of("demo", (), **nested) == listed
    assert config_of({"train": {"lr": 0.5}, "train.rounds": 3}, {"train.lr": 0.25}) == config_of(
        None, ["train.rounds=3", "train.lr=0.25"]
    )
    assert config_of(listed, (), seed=4, data="mnist", model="mlp").model.name == "mlp"
    (tmp_path / "my.toml").write_text("seed = 5\n")
    assert config_of(tmp_path / "my.toml", "framework=fl").seed == 5
    assert config_of(tmp_path / "my.toml", (), fleet={"file": tmp_path / "f"}).fleet.file == str(tmp_path / "f")
    assert config_of(config_of("demo", ["train.budget_s=5"]), (), train={"budget_s": None}).train.budget_s is None


class Pairs(torch.utils.data.Dataset):
    def __getitem__(self, place: int) -> tuple[np.ndarray, int]:
        return X[place], int(Y[place])


@pytest.mark.parametrize(
    ("words", "named", "parts"),
    [
        (("dmeo", ()), {}, ("config 'dmeo'", "did you mean demo?", "presets")),
        ((None, [3]), {}, ("settings are a list", "['train.rounds=5']", "keywords such as train=")),
        ((None, {"train": {"rounds": {"a": 3}}}), {}, ("train.rounds is {'a': 3}", "whole number")),
        ((None, ()), {"rounds": 3}, ("config field 'rounds'", "did you mean 'train.rounds'?")),
        ((None, ()), {"train": {"rouns": 3}}, ("config field 'train.rouns'", "did you mean 'train.rounds'?")),
        ((None, ()), {"train": {"lr": object()}}, ("train.lr is a object", "give a number")),
        ((None, ()), {"data": (X, Y)}, ("data is a tuple", "hsfl.dataset(x, y)")),
        ((None, ()), {"data": Pairs()}, ("data is a Pairs", "hsfl.dataset(Pairs())")),
        ((None, ()), {"data": X}, ("data is a ndarray", "hsfl.dataset(x, y)")),
        ((None, ()), {"model": nn.Linear(2, 2)}, ("Linear", "order of its parts", "example of its input")),
        ((None, ()), {"model": 3}, ("model is a int", "nn.Module", "list of modules")),
    ],
)  # fmt: skip
def test_wrong_words_are_one_line(words: tuple, named: dict, parts: tuple[str, ...]) -> None:
    with raises(InputError, *parts) as caught:
        config_of(*words, **named)
    assert "\n" not in str(caught.value)


def test_frameworks_are_a_list_of_texts_or_named_texts(tmp_path: Path) -> None:
    assert contender_texts("hsfl") == contender_texts(["hsfl"]) == ["hsfl"]
    assert contender_texts({"Ours": "hsfl,train.lr=0.1", "FL": "fl"}) == ["Ours=hsfl,train.lr=0.1", "FL=fl"]
    wrong = {"hsfl": {"train.lr": 0.1}, "fl": {}}
    with raises(InputError, "frameworks['hsfl'] is {'train.lr': 0.1}", "list of texts", '["hsfl,train.lr=0.1", "fl"]'):
        package.compare("demo", wrong, tmp_path)
    with raises(InputError, "frameworks['fl'] is None", '"Ours=hsfl", "fl"'):
        package.sweep("demo", {"train.lr": [0.1]}, {"Ours": "hsfl", "fl": None}, tmp_path)
    with raises(InputError, "holds {'hsfl':", "list of texts", "Ours=hsfl"):
        package.compare("demo", [{"hsfl": {}}], tmp_path)
    with raises(InputError, "frameworks is 3", "list of texts"):
        package.compare("demo", 3, tmp_path)


def test_a_sweep_takes_one_value_without_a_list(tmp_path: Path) -> None:
    assert _words({"network.subchannel_hz": 1e6}) == ["network.subchannel_hz=1000000.0"]
    assert _words({"fleet.cuts": "fastest", "train.lr": np.float64(0.5)}) == ['fleet.cuts="fastest"', "train.lr=0.5"]
    assert _words({"train.lr": np.array(0.5)}) == ["train.lr=0.5"]
    assert _words({"train.lr": np.array([0.5, 1.0])}) == ["train.lr=0.5,1.0"]
    with raises(InputError, "fields are 3", "{'train.lr': [0.001, 0.01]}"):
        package.sweep("demo", 3, out=tmp_path)


# --- models


class Residual(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


RELU = nn.ReLU()


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (nn.Sequential(), ("SplitModel", "at least one unit")),
        (Residual(nn.Linear(2, 2)), ("Residual", "order of its parts")),
        (nn.Sequential(nn.Linear(2, 2), RELU, nn.Linear(2, 2), RELU), ("same module", "stands twice")),
        (nn.Sequential(nn.LazyLinear(2)), ("unit 0", "lazy", "one batch first")),
        ([nn.Linear(2, 2), "relu"], ("unit 1", "is a str", "each unit an nn.Module")),
        ("cnn", ("model is a str", "nn.Module", "list of modules")),
    ],
)
def test_models_that_cannot_be_split_are_refused_in_one_line(given: Any, parts: tuple[str, ...]) -> None:
    with raises(InputError, *parts):
        split(given)


def test_a_sequential_is_split_into_its_parts() -> None:
    whole = model()
    units = split(whole)
    x = torch.randn(3, 6)
    assert torch.equal(units(x), whole(x))
    assert units.num_units == 3
    assert units.state_dict().keys() == whole.state_dict().keys()


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (nn.Sequential(nn.Linear(5, 4)), ("samples of (6,)", "change unit 0")),
        (nn.Sequential(nn.Linear(6, 5), nn.Linear(6, 4)), ("samples of (6,)", "unit 1 gets (5,)", "change unit 1")),
        (nn.Sequential(nn.Linear(6, 9)), ("gives (9,) numbers", "4 classes")),
        (nn.Sequential(nn.Flatten()), ("no parameters", "layer with weights")),
        (nn.Sequential(nn.Linear(6, 3)), ("gives (3,) numbers", "4 classes")),
        (nn.Sequential(nn.LSTM(6, 4)), ("gives () numbers", "4 classes")),
        (nn.Sequential(nn.Conv2d(1, 1, 3)), ("samples of (6,)", "change unit 0")),
    ],
)
def test_models_that_do_not_fit_are_refused_in_run_and_plan(
    given: nn.Module, parts: tuple[str, ...], tmp_path: Path
) -> None:
    data = package.dataset(X, Y)
    with raises(InputError, *parts):
        package.run(None, tmp_path / "run", data=data, model=given, **SMALL)
    with raises(InputError, *parts):
        package.plan(None, data=data, model=given, **SMALL)
    assert not (tmp_path / "run").exists()


# --- runs


def test_a_run_with_data_and_model_of_ones_own(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    data = package.dataset(X, Y, clients=WHO, name="toy")
    words = {"data": data, "model": model(), **SMALL}
    result = package.run(None, tmp_path / "a", ["data.partition=given"], **words)
    assert (result.status, result.folder, result.report) == ("finished", tmp_path / "a", tmp_path / "a/report.html")
    names((tmp_path / "a/report.html").read_text(), "as the data say", "3 clients")
    assert capfd.readouterr() == ("", "")
    assert [row["round"] for row in result.table()] == [1, 2]
    assert result.table()[1]["test_accuracy"] == result.test_accuracy == result.records()[1].test_accuracy
    clients = RunFolder(tmp_path / "a").clients()
    assert clients is not None
    assert clients.num_samples == np.bincount(data.clients).tolist()
    stored = json.loads((tmp_path / "a/config.json").read_text())
    assert (stored["data"]["name"], stored["model"]["name"]) == ("own:toy", "own")


def test_a_run_goes_on_with_the_same_data_alone(tmp_path: Path) -> None:
    data, other = package.dataset(X, Y), package.dataset(X + 1, Y)
    words: dict[str, Any] = {"data": data, "model": "mlp", "report": False}
    package.run(None, tmp_path / "a", ["train.rounds=1"], **words, fleet=SMALL["fleet"])
    with raises(InputError, "data.sha256"):
        package.run(None, tmp_path / "a", resume=True, **(words | {"data": other}), fleet=SMALL["fleet"])
    more = ["train.rounds=2"]
    assert package.run(None, tmp_path / "a", more, resume=True, **words, fleet=SMALL["fleet"]).rounds == 2
    package.run(None, tmp_path / "b", more, **words, fleet=SMALL["fleet"])
    assert_same_run(tmp_path / "a", tmp_path / "b")
    names(refused("evaluate", tmp_path / "a"), "data", "from Python")
    names(refused("run", tmp_path / "a/config.json", "--out", tmp_path / "c"), "data", "from Python")
    stored = RunFolder(tmp_path / "a").config()
    with raises(InputError, "this run began with"):
        prepare(stored, other)


def test_settings_that_apply_to_any_data_apply_to_given_data(tmp_path: Path) -> None:
    pixels = package.dataset(RNG.integers(0, 256, (90, 8, 8)), Y)
    config = config_of(None, ["data.limit=40", "data.limit_test=10", "data.image_size=16"], data=pixels)
    bench = prepare(config, pixels)
    assert (len(bench.task.feed.images), len(bench.test), bench.test.shape) == (40, 10, (1, 16, 16))
    for change, parts in (
        ("data.normalise=true", ("data.normalise is True", "data are own", "csv:PATH and npz:PATH")),
        ("data.client_file=who.txt", ("data.client_file is 'who.txt'", "data from Python", "give clients=")),
    ):
        with raises(InputError, *parts):
            package.run(None, tmp_path / "run", [change], data=pixels)
    scaled = config_of(None, ["network.sample_scale=3"], data=pixels)
    assert survey(scaled, pixels).num_samples.sum() == 3 * len(pixels.train_y)


def test_the_same_run_as_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop.train_run(tiny("train.rounds=1"), tmp_path / "a")
    result = package.run(tiny(), tmp_path / "b", train={"rounds": 1}, report=False)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert result.report is None
    assert not (tmp_path / "b/report.html").exists()
    monkeypatch.chdir(tmp_path)
    assert package.run(tiny("train.rounds=1")).folder.parent == Path("runs")


def test_progress_and_observers(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    seen: list[Any] = []

    class Mine(package.Observer):
        def round_ends(self, record: Any) -> None:
            seen.append(record.round)

        def warns(self, message: str) -> None:
            seen.append(message)

    data = package.dataset(X, Y, clients=WHO)
    package.run(None, tmp_path / "a", data=data, model="mlp", observer=Mine(), **SMALL)
    assert seen[1:] == [1, 2]
    names(seen[0], "data.partition is 'iid'", "anew")
    package.run(None, tmp_path / "b", data=data, model="mlp", progress=True, **SMALL)
    out, err = capfd.readouterr()
    assert out == ""
    names(err, "warning:", "which client")
    assert "round 2/2" in err
    with raises(InputError, "leave one"):
        package.run(None, tmp_path / "c", data=data, observer=Mine(), progress=True)


def test_a_page_that_cannot_be_written_is_a_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space\nleft")

    monkeypatch.setattr("hsfl.api.run_calls.write_page", full)
    result = package.run(tiny("train.rounds=1"), tmp_path / "a")
    assert (result.status, result.report) == ("finished", None)
    names(capfd.readouterr().err, "warning:", "report.html", "no space left")


# --- comparisons and plans


def test_a_comparison_is_a_table(tmp_path: Path) -> None:
    data = package.dataset(X, Y)
    words = {"data": data, "model": model(), "seeds": 2, **SMALL}
    found = package.compare(None, ["hsfl", "fl"], tmp_path / "out", **words)
    rows = found.table()
    assert {(row["label"], row["seed"]) for row in rows} == {(name, seed) for name in ("hsfl", "fl") for seed in (0, 1)}
    with (tmp_path / "out/rounds.csv").open() as file:
        read = list(csv.DictReader(file))
    assert read == [{name: str(value) for name, value in row.items()} for row in rows]
    assert (tmp_path / "out/report.html").exists()
    again = package.compare(None, ["fl", "hsfl"], tmp_path / "out", **words)
    assert sorted(map(str, again.table())) == sorted(map(str, rows))
    with pytest.raises(InputError, match=r"another data\.sha256"):
        package.compare(None, ["hsfl"], tmp_path / "out", **(words | {"data": package.dataset(X + 1, Y)}))
    for wrong in ({"frameworks": []}, {"seeds": 0}, {"target": 2.0}):
        with pytest.raises(InputError):
            package.compare(None, out=tmp_path / "no", **(words | wrong))


def test_a_plan_is_for_the_run_that_follows(tmp_path: Path) -> None:
    """The planned cuts and samples are the run's, and the same numbers by hand give the same plan."""
    data = package.dataset(X, Y, clients=WHO)
    quick = ["data.partition=given", "allocation.samples=2", "allocation.policy=proposed", "fleet.cuts=planned"]
    words: dict[str, Any] = {"data": data, "model": model(), "fleet": {"num_clients": 3}}
    planned = package.plan(None, quick, **words)
    result = package.run(None, tmp_path / "run", [*quick, "train.rounds=1"], **words)
    assert result.records()[0].cuts == planned.cuts
    config = arguments_of_call(None, quick, data, model(), (), {"fleet": {"num_clients": 3}})
    assert survey(config.config, data).num_samples.tolist() == np.bincount(data.clients).tolist()
    even = package.plan(None, quick[1:], **words)
    names(even.notes[0], "anew")
    by_hand = package.plan(
        None, quick[1:], model=model(), fleet={"num_clients": 3}, input_shape=(6,), num_classes=4, samples_per_client=24
    )
    assert even.round_s == pytest.approx(by_hand.round_s, rel=1e-9)
    assert len(data.train_y) == 72, "so 24 each"


# --- files of one's own, by command


def table_words(*more: str) -> list[str]:
    settings = ["data.name=csv:rows.csv", "data.target_column=kind", "data.client_column=place", "data.partition=given"]
    settings += ["data.normalise=true", "model.name=mlp", "fleet.num_clients=3", "fleet.cuts=1", "train.rounds=2"]
    settings += ["train.batch_size=16", "train.lr=0.02", *more]
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rows.csv").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("undrawn")
def test_a_table_in_run_evaluate_compare_plan_and_show(here: Path) -> None:
    assert hsfl("run", *table_words(), "--out", "a", "--quiet").code == 0
    last = numbers(here / "a")[-1]["test_accuracy"]
    assert hsfl("evaluate", "a", "--json").json()["accuracy"] == pytest.approx(last)
    clients = RunFolder(here / "a").clients()
    assert clients is not None
    shown = hsfl("data", "show", "csv:rows.csv", *table_words(), "--json").json()
    assert list(shown["clients"]) == ["north", "south", "west"]
    assert list(shown["clients"].values()) == clients.num_samples
    assert "north" in hsfl("data", "show", "csv:rows.csv", *table_words()).out
    assert hsfl("compare", *table_words(), "-f", "hsfl", "-f", "fl", "--out", "c", "--quiet").code == 0
    plan = hsfl("plan", *table_words("allocation.samples=1"), "--out", "p", "--json").json()
    assert len(plan["clients"]) == 3
    assert (
        f"{min(clients.num_samples)} to {max(clients.num_samples)} samples each" in (here / "p/plan.json").read_text()
    )


def test_a_run_does_not_go_on_with_another_table(here: Path) -> None:
    hsfl("run", *table_words("train.rounds=1"), "--out", "a", "--quiet")
    (here / "rows.csv").write_text(TABLE + TABLE.splitlines()[1] + "\n")
    words = ("run", "--resume", "--out", "a", "--set", "train.rounds=2")
    names(refused(*words), "other contents", "data.name")
    (here / "rows.csv").write_text(TABLE)
    assert hsfl(*words, "--quiet").code == 0


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (["fleet.num_clients=4"], ("those of 3 clients", "north, south, west", "set fleet.num_clients=3")),
        (["data.client_column=null", "data.feature_columns=['a', 'b']"], ("data.partition is 'given'", "which client holds", "set data.client_column")),
        (["data.name=digits"], ("data.target_column is 'kind'", "data are digits", "csv:PATH")),
        (["data.client_column=null", "data.partition=iid", "data.client_file=who.txt", "data.feature_columns=['a']"],
         ("data.client_file is 'who.txt'", "data.partition is 'iid'")),
        (["data.test_fraction=1.5"], ("data.test_fraction is 1.5", "number below 1")),
        (["data.name=own"], ("given from Python", "data=...")),
        (["data.sha256=0"], ("data.sha256 is 0", "text or null")),
        (["data.sha256='0'"], ("data.sha256", "data.name is 'csv:rows.csv'", "leave it out")),
    ],
)  # fmt: skip
def test_wrong_settings_for_files_are_one_line(changes: list[str], parts: tuple[str, ...], here: Path) -> None:
    (here / "who.txt").write_text("a\n" * 90)
    names(refused("run", *table_words(*changes), "--out", "a"), *parts)
    assert not (here / "a").exists()
