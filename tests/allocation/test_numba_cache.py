"""Compiled code is kept in files, and a damaged file is compiled anew."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hsfl.allocation import numba_cache

CODE = """
from hsfl.allocation.numba_cache import compiled

@compiled
def twice(x):
    return 2 * x + 1

print(twice(20), sum(twice.stats.cache_hits.values()))
"""


def run(place: Path) -> str:
    """The answer, and how often the cache had it."""
    (place / "own.py").write_text(CODE)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(place / "cache")}
    done = subprocess.run(
        [sys.executable, place / "own.py"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [cut, flip, lambda content: b""], ids=["cut", "flip", "empty"])
def test_a_damaged_cache_is_rebuilt(tmp_path: Path, suffix: str, damage) -> None:  # type: ignore[no-untyped-def]
    assert run(tmp_path) == "41 0"
    (path,) = (tmp_path / "cache").rglob(f"*.{suffix}")
    path.write_bytes(damage(path.read_bytes()))
    assert run(tmp_path) == "41 0"
    assert run(tmp_path) == "41 1"


def test_every_source_that_is_compiled_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change, and a move to another folder, give another folder; a source that compiles nothing does not."""
    monkeypatch.setattr(numba_cache, "_HERE", tmp_path)
    monkeypatch.setattr(numba_cache._CONFIG, "CACHE_DIR", "")
    folder = numba_cache.cache_dir.__wrapped__
    (tmp_path / "stage").mkdir()
    source = tmp_path / "stage" / "prices.py"
    source.write_text("@compiled")
    names = [folder()]
    (tmp_path / "plain.py").write_text("x = 1")
    assert folder() == names[0]
    source.write_text("@compiled ")
    names.append(folder())
    source.rename(tmp_path / "prices.py")
    names.append(folder())
    assert len(set(names)) == 3
    assert all(Path(name).parent == tmp_path / "__pycache__" for name in names)
