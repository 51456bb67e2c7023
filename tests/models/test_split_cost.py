"""`hsfl cost FILE.py:FUNCTION`: the table of a module of one's own."""

import subprocess
import sys
from pathlib import Path

import pytest

from hsfl import plugins
from tests.small_runs import hsfl, refused

FILE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(2, classes)
    def forward(self, x):
        return self.head(self.stem(x).relu().mean((2, 3)))

def build(input_shape, num_classes):
    return Net(num_classes)

def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

def broken():
    return 1 / 0

def wrong():
    return 7
"""


@pytest.fixture
def file(tmp_path: Path):
    path = tmp_path / "my_file.py"
    path.write_text(FILE)
    yield path
    plugins.unload()


def test_the_table_of_a_module_in_a_file(file: Path) -> None:
    table = hsfl("cost", f"{file}:build", "--input", "1,8,8", "--classes", 4, "--json").json()
    assert table["smashed_bits"] == [64 * 32, 2 * 32, 0]  # the graph is cut behind the mean, not before it
    assert table["model_bits"] == [0, 20 * 32, (20 + 12) * 32]
    assert table["client_forward_flops"][1] == 2 * 9 * 2 * 64
    rows = hsfl("cost", f"{file}:build", "--input", "1,8,8").out
    assert "stem" in rows
    assert "head" in rows
    assert len(hsfl("cost", f"{file}:plain", "--input", "1,8,8", "--json").json()["model_bits"]) == 3
    assert not plugins.LOADED  # the file registers nothing that processes started later must load


def test_mistakes_in_the_file_are_one_line(file: Path) -> None:
    assert "has no function 'bild'; it has build, plain, broken, wrong" in refused("cost", f"{file}:bild")
    assert "plugin my_file.py, line 18: ZeroDivisionError" in refused("cost", f"{file}:broken")
    assert "a model is a int" in refused("cost", f"{file}:wrong")
    assert "is no file; give FILE.py:NAME" in refused("cost", f"{file}x.py:build")


@pytest.mark.slow
def test_what_splits_nothing_loads_no_sympy() -> None:
    code = "import hsfl.runs.loop, hsfl.models.zoo, hsfl.models.split, sys; sys.exit('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
