"""Everything shown is run: each benchmark's smoke run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_smoke_run(path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(path), "--quick"], check=True, timeout=600, env=environment)


def test_house_counts_a_tree_made_for_it(tmp_path: Path) -> None:
    """Two modules in a circle, a third that imports them, one file name and one function with two homes."""
    texts = {
        "src/hsfl/__init__.py": '__all__ = ["run"]\n',
        "src/hsfl/a/__init__.py": "",
        "src/hsfl/a/units.py": "from hsfl.b import units\n\n\ndef read(found):\n    return units\n",
        "src/hsfl/b/__init__.py": "",
        "src/hsfl/b/units.py": "def read(path):\n    from hsfl.a.units import read\n\n    raise ValueError(path)\n",
        "src/hsfl/top.py": "import hsfl.a.units\n\n\ndef _hidden():\n    here = 1\n    return here\n",
        "tests/test_a.py": 'def test_words(raises):\n    with raises(ValueError, match="the path is empty"):\n        pass\n\n\n'
        "def test_number():\n    assert 1 == 1\n",
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
        "tests": 2,
        "tests that compare sentences": 1,
    }
    assert {name: figures[name] for name in expected} == expected
