"""Rows, data, options and names of the user's own."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hsfl import plugins
from hsfl.config import read_config
from hsfl.data.registry import load_dataset
from hsfl.framework_table import METHODS, register_framework
from hsfl.frameworks.copy_per_client import HSFL
from hsfl.runs import loop
from hsfl.training.batches import Images
from tests.plugins.files import TWICE, twice, write
from tests.small_runs import numbers, tiny

# --- rows


@pytest.mark.parametrize(("base", "like"), [("HSFL", "hsfl"), ("CopyPerClient", "hsfl"), ("SplitFedV1", "splitfed_v1")])
def test_a_row_is_like_that_of_the_framework_it_derives_from(tmp_path: Path, base: str, like: str) -> None:
    plugins.load_plugin(twice(tmp_path / "a.py", base))
    row, usual = METHODS["twice"], METHODS[like]
    for word in ("timing", "own_cuts", "copy_per_client", "own_policy"):
        assert getattr(row, word) == getattr(usual, word)
    assert (row.title, row.source) == ("twice", "a.py")
    assert row.style not in [other.style for other in METHODS.values() if other is not row]


def test_words_of_timing_and_a_timeline_of_ones_own(tmp_path: Path) -> None:
    plugins.load_plugin(twice(tmp_path / "a.py", more=', timing={"server": "own", "tau": False}, own_cuts=False'))
    row = METHODS["twice"]
    assert (row.timing.server, row.timing.tau, row.timing.step, row.own_cuts) == ("own", False, "free", False)
    slow = "\nfrom dataclasses import replace\nfrom hsfl.network.clock import timeline\n\n\ndef late(*a, **k):\n"
    slow += "    line = timeline('hsfl', *a, **k)\n    return replace(line, round_s=2 * line.round_s)\n"
    plugins.load_plugin(write(tmp_path / "b.py", slow + TWICE.format(base="HSFL", name="slow", more=", timeline=late")))
    (first, second) = (numbers(_ran(tmp_path / name, name))[0]["round_s"] for name in ("hsfl", "slow"))
    assert second == 2 * first


def _ran(folder: Path, framework: str) -> Path:
    loop.train_run(tiny(f"framework={framework}", "train.rounds=1"), folder)
    return folder


# --- data of any shape


def test_floats_are_taken_as_they_are_or_normalised() -> None:
    x = torch.randn(50, 3, 7, generator=torch.manual_seed(0)) * 4 + 2
    y = torch.zeros(50, dtype=torch.int64)
    assert torch.equal(Images(x, y, (), ()).floats(x), x)
    mean, std = tuple(x.mean((0, 2)).tolist()), tuple(x.std((0, 2), correction=0).tolist())
    found = Images(x, y, mean, std).floats(x)
    torch.testing.assert_close(found, (x - x.mean((0, 2))[:, None]) / x.std((0, 2), correction=0)[:, None])
    assert Images(x, y, mean, std).shape == (3, 7)


def test_a_data_set_is_normalised_by_its_training_samples(here: Path) -> None:
    plugins.load_plugin("my_data.py")
    found = load_dataset("points")
    assert (found.train_x.dtype, found.train_x.shape, found.classes) == (np.float32, (500, 4), ("red", "green", "blue"))
    np.testing.assert_allclose(found.mean, found.train_x.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found.std, found.train_x.std(axis=0), rtol=1e-5)


@pytest.mark.parametrize("framework", ["cl", "psl", "locfedmix_sl", "cpsl", "splitfed_v2"])
def test_vectors_train_in_every_family(here: Path, framework: str) -> None:
    plugins.load_plugins_of(["my_data.py", "my_model.py"])
    words = [
        f"framework={framework}",
        "data.name=points",
        "model.name=gelu_mlp",
        "fleet.num_clients=3",
        "train.rounds=2",
    ]
    summary = loop.train_run(
        read_config(None, [*words, "train.batch_size=16", "train.lr=0.02", "fleet.cuts=2"]), here / "run"
    )
    assert summary.test_accuracy is not None
    assert summary.test_accuracy > 0.8


# --- from Python


def test_a_notebooks_cell_may_run_twice() -> None:
    for title in ("first", "second"):
        assert register_framework("mine", type("Mine", (HSFL,), {}), title=title).title == title
    assert METHODS["mine"].source == "Python"


def test_the_command_as_a_module_and_help_without_torch() -> None:
    code = "import runpy, sys\nsys.argv = ['hsfl', 'run', '--help']\ntry:\n    runpy.run_module('hsfl', run_name='__main__')\n"
    code += "except SystemExit:\n    assert not {'torch', 'hsfl.plugins'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "hsfl run my.toml --plugin my_method.py" in done.stdout
    assert (Path(loop.__file__).parents[1] / "py.typed").exists()
