"""Every test begins and ends without plugins; `here` is a folder with the files of docs/extend.md."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.files import BLOCKS, unload, write


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Every test begins and ends without plugins."""
    unload()
    yield
    unload()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of docs/extend.md, in which commands are typed."""
    for name, text in BLOCKS:
        write(tmp_path / name, text)
    monkeypatch.chdir(tmp_path)
    return tmp_path
