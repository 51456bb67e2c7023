"""docs/examples/unet.py runs as it stands, and commands take it as a plugin."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hsfl import plugins
from hsfl.models.cost_table import measure_cost
from hsfl.models.zoo import build
from tests.plugins.files import unload
from tests.small_runs import hsfl

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs/examples/unet.py"
WORDS = ["data.name=shapes", "model.name=unet", "data.limit=24", "data.limit_test=8", "train.rounds=1"]
WORDS += ["fleet.num_clients=3", "train.batch_size=4"]


@pytest.fixture(autouse=True)
def _no_plugins():
    yield
    unload()


def test_its_skips_cross_the_cuts() -> None:
    """Numbers that cross each cut: 8 x 32 x 32 at the top, beside them 16 x 16 x 16, and at the bottom 32 x 8 x 8."""
    plugins.load_plugin(EXAMPLE)
    cost = measure_cost(build("unet", (1, 32, 32), 4), (1, 32, 32), 2)
    large, middle, small = 8 * 32**2, 16 * 16**2, 32 * 8**2
    crossing = [large, large + middle, large + middle + small, large + 2 * middle, large + middle, 2 * large, large]
    assert (cost.smashed_bits[1:-1] / 32).tolist() == crossing


def test_a_command_takes_it_as_a_plugin(tmp_path: Path) -> None:
    words = [word for change in [*WORDS, "fleet.cuts=[1, 3, 5]"] for word in ("--set", change)]
    answer = hsfl("run", "--plugin", EXAMPLE, *words, "--out", tmp_path / "run", "--quiet")
    assert answer.code == 0, answer.err
    answer = hsfl("evaluate", tmp_path / "run", "--plugin", EXAMPLE)
    assert re.search(r"last model: mean IoU [\d.]+%, pixel accuracy [\d.]+%", answer.out), answer
    assert "pixels of ring" in hsfl("data", "show", "shapes", "--plugin", EXAMPLE).out


@pytest.mark.slow
def test_it_learns_as_it_stands(tmp_path: Path) -> None:
    """Background alone would have a mean IoU of about 0.2."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, EXAMPLE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    overlap = re.search(r"mean IoU ([\d.]+)", done.stdout)
    assert overlap is not None, done.stdout
    assert float(overlap[1]) > 0.5
    assert (tmp_path / "runs/unet/report.html").exists()
