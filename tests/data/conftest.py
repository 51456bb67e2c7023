"""Real data where HSFL_DATA names it, and a small web server for downloads."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from web_server import WebServer


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets."""
    place = os.environ.get("HSFL_DATA")
    if not place or not Path(place).is_dir():
        pytest.skip("real data: set HSFL_DATA to the folder that has MNIST/, cifar-10-batches-py/ and ham10000/")
    return Path(place)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    folder = tmp_path / "served"
    folder.mkdir()
    running = WebServer(folder)
    yield running
    running.stop()
