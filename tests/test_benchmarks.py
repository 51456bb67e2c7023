"""Everything shown is run: each benchmark's smoke run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
BENCHMARKS = [*sorted(FOLDER.glob("*.py")), FOLDER / "peers" / "run.py"]
TESTED_ELSEWHERE = ("testbed",)  # tests/test_testbed.py


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in BENCHMARKS if path.stem not in TESTED_ELSEWHERE], ids=lambda path: path.stem
)
def test_smoke_run(path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(path), "--quick"], check=True, timeout=600, env=environment)


# A name says whether the test compares a sentence.
COMPARING_TESTS = """
@pytest.mark.parametrize("words", TABLE)
def test_sentence_of_a_table_in_a_variable(words):
    assert words in str(error)

@pytest.mark.parametrize(("value", "message"), [(1, "short"), pytest.param(2, "the path is empty", id="empty")])
def test_sentence_of_a_column_in_match(value, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read(value)

@pytest.mark.parametrize("value, parts", [(1, ("path", "empty; name a file"))])
def test_sentence_of_a_column_among_parts(value, parts):
    with raises(ValueError, *parts):
        read(value)

def test_sentence_in_match():
    with pytest.raises(ValueError, match=re.escape("the path is empty")):
        read("")

def test_sentence_among_parts():
    names(error, "path", "the path is empty, name a file")

async def test_sentence_in_a_comparison():
    assert "path is empty" in str(error)

def test_parts():
    with raises(ValueError, "the path is empty", f"file {name}"):
        names(error, "name a file")

@pytest.mark.parametrize(("value", "parts"), [(1, ("the path is empty", "name a file"))])
def test_parts_of_a_column(value, parts):
    names(read(value), *parts)

@pytest.mark.parametrize(("text", "number"), [("the path is empty", 4)])
def test_text_that_is_only_read(text, number):
    assert count(text) == number

def test_text_in_another_call():
    assert count("the path is empty") == 4

def test_number():
    assert 1 == 1

TABLE = ["the path is empty"]
"""


def test_house_counts_a_tree_made_for_it(tmp_path: Path) -> None:
    """Two modules in a circle, a third that imports them, one file name and one function with two homes."""
    texts = {
        "src/hsfl/__init__.py": '__all__ = ["run"]\n',
        "src/hsfl/a/__init__.py": "",
        "src/hsfl/a/units.py": "from hsfl.b import units\n\n\ndef read(found):\n    return units\n",
        "src/hsfl/b/__init__.py": "",
        "src/hsfl/b/units.py": "def read(path):\n    from hsfl.a.units import read\n\n    raise ValueError(path)\n",
        "src/hsfl/top.py": "import hsfl.a.units\n\n\ndef _hidden():\n    here = 1\n    return here\n",
        "tests/test_a.py": COMPARING_TESTS,
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    house = Path(__file__).parent.parent / "benchmarks" / "house.py"
    done = subprocess.run(
        [sys.executable, str(house), "--json", str(tmp_path)], check=True, capture_output=True, text=True
    )
    figures = json.loads(done.stdout)[tmp_path.name]
    expected = {
        "modules": 6,
        "lines": 16,
        "files in the largest folder": 1,
        "longest import chain": 2,  # top, and the circle
        "modules in circles": ["hsfl.a.units hsfl.b.units"],
        "those file names": ["units: a/units.py b/units.py"],
        "the worst functions": ["read 2"],
        "functions that look public": 2,
        "names exported": 1,
        "names assigned": 4,
        "the pronouns": ["found 1", "here 1"],
        "raises": 1,
        "tests": 11,
        "tests that compare sentences": 6,
    }
    assert {name: figures[name] for name in expected} == expected
