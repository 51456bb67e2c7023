"""`hsfl cost FILE.py:FUNCTION`: the table of a module of one's own."""

import subprocess
import sys
from pathlib import Path

import pytest

from hsfl import plugins
from tests.naming import names
from tests.plugins.files import unload
from tests.small_runs import hsfl, refused

FILE = """
import torch
from torch import nn
from beside import nothing

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

def three(a, b, c):
    return None

class Places(nn.Module):
    # Positions are a parameter of the module itself, which comes before its embedding.
    def __init__(self, tokens, length):
        super().__init__()
        self.places = nn.Parameter(torch.zeros(length, 4))
        self.words, self.out = nn.Embedding(tokens, 4), nn.Linear(4, tokens)
        self.norm = nn.Linear(4, 4)
    def forward(self, x):
        return self.out(self.norm(self.words(x) + self.places).relu())

class Column(nn.Module):
    # A table of floats, of which one column names a kind.
    def __init__(self):
        super().__init__()
        self.kinds, self.rest, self.out = nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 2)
    def forward(self, x):
        return self.out((self.kinds(x[:, 0].long()) + self.rest(x[:, 1:])).relu())

def tokens(input_shape, num_classes):
    return Places(num_classes, input_shape[0])

def column():
    return Column()

def packed():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)
        def forward(self, x, mask):
            return self.last(self.first(x) * mask)
    import hsfl
    return hsfl.split(Masked(), (torch.zeros(2, 4), torch.ones(2, 1)))

def tied(input_shape, num_classes):
    made = Places(num_classes, input_shape[0])
    made.out.weight = made.words.weight
    return made
"""


@pytest.fixture
def file(tmp_path: Path):
    path = tmp_path / "my_file.py"
    path.write_text(FILE)
    (tmp_path / "beside.py").write_text("nothing = None\n")  # a file beside it can be imported
    yield path
    unload()


def test_the_table_of_a_module_in_a_file(file: Path) -> None:
    before = dict(plugins.LOADED)
    table = hsfl("cost", f"{file}:build", "--input", "1,8,8", "--classes", 4, "--json").json()
    assert table["smashed_bits"] == [64 * 32, 2 * 32, 0]  # the graph is cut behind the mean, not before it
    assert table["model_bits"] == [0, 20 * 32, (20 + 12) * 32]
    assert table["client_forward_flops"][1] == 2 * 9 * 2 * 64
    rows = hsfl("cost", f"{file}:build", "--input", "1,8,8").out
    assert "stem" in rows
    assert "head" in rows
    assert len(hsfl("cost", f"{file}:plain", "--input", "1,8,8", "--json").json()["model_bits"]) == 3
    assert before == plugins.LOADED  # the file registers nothing that processes started later must load


def test_whether_samples_are_tokens_is_tried(file: Path) -> None:
    rows = hsfl("cost", f"{file}:tokens", "--input", "6", "--classes", 9, "--json").json()
    assert rows["smashed_bits"][0] == 6 * 64
    rows = hsfl("cost", f"{file}:column", "--input", "4", "--json").json()
    assert rows["smashed_bits"][0] == 4 * 32
    names(refused("cost", f"{file}:packed", "--input", "4"), "2 tensors", "packed", "5 numbers")
    words = refused("cost", f"{file}:tied", "--input", "6", "--classes", 9)
    names(words, "words.weight and out.weight", "one parameter")


def test_mistakes_in_the_file_are_one_line(file: Path) -> None:
    names(
        refused("cost", f"{file}:bild"), "'bild'", "build, plain, broken, wrong, three", "tokens, column, packed, tied"
    )
    names(refused("cost", f"{file}:broken"), "plugin my_file.py, line 20", "ZeroDivisionError")
    names(refused("cost", f"{file}:wrong"), "model", "a int")
    names(refused("cost", f"{file}:three"), "three", "input_shape, num_classes")
    names(refused("cost", f"{file}x.py:build"), "no file", "FILE.py:NAME")


@pytest.mark.slow
def test_what_splits_nothing_loads_no_sympy() -> None:
    code = (
        "import hsfl.runs.loop, hsfl.models.zoo, hsfl.models.split.graph_split, sys; sys.exit('sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
