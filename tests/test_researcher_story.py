"""A researcher's first day, small: a run as the defaults have it, a method of their own beside two others, a sweep, and all of it again from a notebook."""

import csv
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hsfl as package
from hsfl.errors import InputError
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import names, raises
from tests.plugins.files import unload
from tests.small_runs import hsfl, leave_undrawn, refused

STUDY = """
[model]
name = "cnn"
norm = "none"

[data]
name = "digits"
image_size = 8
limit = 90
limit_test = 60

[fleet]
num_clients = 3

[network]
num_subchannels = 4
sample_scale = 16

[train]
rounds = 2
batch_size = 8
optimizer = "sgd"
lr = 0.05

[allocation]
samples = 2
"""
METHOD = """
import torch
from pydantic import BaseModel, Field

import hsfl


class Options(BaseModel):
    most: float = Field(1.0, gt=0)


class Clipped(hsfl.HSFL):
    def adjust_gradients(self, turn, parameters):
        torch.nn.utils.clip_grad_norm_(parameters.values(), self.task.options.most)


hsfl.register_framework("clipped", Clipped, title="Clipped HSFL", options=Options)
"""
OURS = "Ours=clipped,options.clipped.most=0.05"
PUBLISHED = "As published=splitfed_v1,allocation.policy=own"
CONTENDERS = [OURS, "hsfl", "splitfed_v1", PUBLISHED, "fl", "sl"]
NAMES = ["Ours", "HSFL", "SplitFed V1", "As published", "FL", "SL"]
EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


def words(*texts: str) -> list[str]:
    return [part for text in texts for part in ("-f", text)]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a config and a method, in which a run, a comparison and a sweep have been made."""
    desk = tmp_path_factory.mktemp("desk")
    (desk / "study.toml").write_text(STUDY)
    (desk / "clipped.py").write_text(METHOD)
    unload()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(desk)
        leave_undrawn(patch)
        plugin = ("--plugin", "clipped.py")
        typed = {
            "run": ("run", "study.toml", "--out", "runs/first"),
            "compare": ("compare", "study.toml", *plugin, *words(*CONTENDERS), "--seeds", 2, "--latex"),
            "sweep": ("sweep", "study.toml", "network.subchannel_hz=0.5e6,2e6", *plugin, *words(OURS, "splitfed_v1"), "--seeds", 2, "--latex", "--plan-only"),
        }  # fmt: skip
        for name, command in typed.items():
            answer = hsfl(*command)
            assert answer.code == 0, answer
            (desk / f"{name}.txt").write_text(answer.out + answer.err)
        yield desk
    unload()


def test_the_first_run_is_the_method_and_says_so(desk: Path) -> None:
    folder = RunFolder(desk / "runs/first")
    config = folder.config()
    assert (config.fleet.cuts, config.allocation.policy) == ("planned", "proposed")
    record = folder.rounds()[0]
    assert record.allocation["policy"] == "proposed"
    assert record.allocation["gap"] <= config.allocation.gap * 1.01
    cuts = " ".join(map(str, record.cuts))
    names((desk / "run.txt").read_text(), f"cuts {cuts} (planned)", "allocation proposed", "runs/first")
    names((desk / "runs/first/report.html").read_text(), "allocation proposed")


def test_the_same_config_gives_the_same_numbers_on_another_day(desk: Path) -> None:
    again = hsfl("run", "runs/first", "--out", "runs/again", "--quiet", "--json").json()
    assert RunFolder(desk / "runs/again").config() == RunFolder(desk / "runs/first").config()
    (first, other) = (rows(desk / f"runs/{name}/rounds.csv") for name in ("first", "again"))
    assert [row["sim_time_s"] for row in first] == [row["sim_time_s"] for row in other]
    assert again["sim_time_s"] == float(first[-1]["sim_time_s"])


def test_every_contender_is_named_with_its_cuts_and_allocation(desk: Path) -> None:
    compared = desk / "runs/compare"
    contenders = {row["framework"]: row for row in rows(compared / "table-contenders.csv")}
    assert list(contenders) == NAMES
    told = {name: (row["cuts"], row["allocation"]) for name, row in contenders.items()}
    assert told["Ours"][1] == told["HSFL"][1] == told["SplitFed V1"][1] == "proposed"
    assert told["HSFL"][0].startswith("planned")
    names(told["SplitFed V1"][0], "one cut", "fastest")
    names(told["As published"], "smallest max_cut", "as published")
    names(told["SL"][1], "whole band in turns")
    assert told["FL"][0] == "whole model on each client"
    names(contenders["Ours"]["own settings"], "options.clipped.most=0.05")
    page = (compared / "report.html").read_text()
    for name in NAMES:
        names(page, name)
    folders = [path.name for path in compared.iterdir() if path.is_dir()]
    assert len(folders) == len(CONTENDERS)
    assert not re.search(r"[,= ]", "".join(folders)), folders


def test_all_had_the_same_means_and_the_lines_tell_the_gains_apart(desk: Path) -> None:
    compared: Any = package.open(desk / "runs/compare")
    first_s = {(run.name, run.seed): run.records[0].round_s for run in compared.runs}
    for seed in (0, 1):
        assert first_s["Ours", seed] == first_s["HSFL", seed] <= first_s["SplitFed V1", seed] * 1.002
        assert first_s["SplitFed V1", seed] <= first_s["As published", seed] * 1.002
    assert compared.reference == "Ours", "the first, since it was given a name"
    lines = (desk / "compare.txt").read_text()
    for gain in ("own cuts ", "the allocation ", "splitting "):
        names(lines, f"What {gain}")


def test_tables_for_a_paper(desk: Path) -> None:
    for folder, tables in (
        ("compare", {"metrics", "time", "bytes", "pairs", "contenders"}),
        ("sweep", {"means", "between-contenders", "between-values", "contenders"}),
    ):
        written = {path.stem.removeprefix("table-") for path in (desk / "runs" / folder).glob("table-*.csv")}
        assert written == tables
        for name in tables:
            latex = (desk / f"runs/{folder}/table-{name}.tex").read_text()
            names(latex, "\\toprule", "\\bottomrule", f"\\label{{tab:{folder}-{name}}}")
            assert len(re.findall(r"\\\\$", latex, re.M)) == 1 + len(rows(desk / f"runs/{folder}/table-{name}.csv"))


def test_differences_of_a_sweep_are_seed_by_seed(desk: Path) -> None:
    runs = {
        (row["network.subchannel_hz"], row["name"], row["seed"]): float(row["round_s"])
        for row in rows(desk / "runs/sweep/sweep.csv")
    }
    assert len(runs) == 2 * 2 * 2
    for row in rows(desk / "runs/sweep/table-between-contenders.csv"):
        hz, other = row["network.subchannel_hz"], row["against"]
        differences = [runs[hz, "Ours", seed] - runs[hz, other, seed] for seed in "01"]
        (column,) = (
            name for name in row if name.startswith("mean round") and not name.endswith((" low", " high", " n"))
        )
        assert float(row[column]) == pytest.approx(np.mean(differences))
        assert float(row[f"{column} low"]) <= min(differences) <= max(differences) <= float(row[f"{column} high"])


@pytest.mark.parametrize("name", ["first", "compare", "sweep"])
def test_a_notebook_reads_the_folders(desk: Path, name: str) -> None:
    found: Any = package.open(f"runs/{name}")
    assert found.table()
    assert found.plot().axes
    assert found._repr_html_()
    assert package.report(f"runs/{name}", desk / f"{name}.html").stat().st_size > 10_000


def test_a_notebook_asks_for_numbers(desk: Path) -> None:
    result: Any = package.open("runs/first")
    assert package.evaluate("runs/first").accuracy == pytest.approx(result.test_accuracy)
    cost = package.cost("cnn", (1, 8, 8))
    assert max(RunFolder("runs/first").rounds()[0].cuts) <= cost.num_units
    scenario = json.loads((EXAMPLES / "scenario.json").read_text())
    slow, fast = (package.allocate(scenario | {"servers": scenario["servers"] | {"main_hz": hz}}) for hz in (1e9, 1e12))
    assert fast.round_s < slow.round_s
    swept = package.sweep(
        "study.toml", {"train.batch_size": [8, 16]}, out="runs/from-python", plan_only=True, report=False
    )
    assert [row["train.batch_size"] for row in swept.table()] == [8, 16]


def test_another_task_and_a_model_of_ones_own(desk: Path) -> None:
    """A bright square on noise, to be told from the ground pixel by pixel."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 90, (60, 1, 8, 8)).astype(np.uint8)
    pixels = np.zeros((60, 8, 8), np.uint8)
    for image, classes, (row, column) in zip(images, pixels, rng.integers(0, 5, (60, 2))):
        place = (slice(row, row + 4), slice(column, column + 4))
        image[(0, *place)], classes[place] = 250, 1
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    result = package.run(
        "study.toml",
        "runs/squares",
        ["data.image_size=null", "data.limit=null", "network.sample_scale=1"],
        data=package.dataset(images, pixels, task="segmentation", classes=["ground", "square"]),
        model=model,
        train={"lr": 0.5, "rounds": 6},
    )
    assert result.records()[-1].metrics["mean_iou"] > 0.6, "all ground has half of its 75 %"


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (["compare", *words("A=hsfl", "A=fl")], ("hsfl and fl", "both called A")),
        (["compare", *words("A=hsfl", "B=hsfl")], ("twice", "A", "B")),
        (["compare", *words("=hsfl")], ("=hsfl",)),
        (["compare", *words("Ours=clippd")], ("'clippd'", "clipped")),
        (["compare", *words("clipped,options.clipped.most=0")], ("options.clipped.most", "above 0")),
        (["sweep", "network.kind=ofdma,measured", "--quiet", *words("hsfl")], ("network.main_up_bps",)),
        (["run", "--set", "allocation.policy=best"], ("policy 'best'", "proposed")),
        (["run", "--set", "fleet.cuts=deepest"], ("fleet.cuts", "max_cut")),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_named(desk: Path, command: list[str], parts: tuple[str, ...]) -> None:
    names(refused(command[0], "study.toml", "--plugin", "clipped.py", *command[1:], "--out", "runs/wrong"), *parts)
    assert not (desk / "runs/wrong").exists()


def test_errors_of_a_notebook_speak_of_arguments(desk: Path) -> None:
    with raises(InputError, "runs/first", "out=") as caught:
        package.run("study.toml", "runs/first")
    assert "--" not in str(caught.value)
    with raises(InputError, "runs/none"):
        package.evaluate("runs/none")
    shutil.copytree("runs/compare", "runs/kept")
    with raises(InputError, "As published", "out=") as caught:
        package.compare("study.toml", ["As published=fl"], "runs/kept")
    assert "--" not in str(caught.value)
