"""A small web server for downloads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.web_server import WebServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    folder = tmp_path / "served"
    folder.mkdir()
    running = WebServer(folder)
    yield running
    running.stop()
