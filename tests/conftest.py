"""One thread, so that numbers and times do not depend on the machine's cores; and a run that many tests look at."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # for torch here and in the processes that tests start

import pytest
import torch
from hypothesis import settings

from hsfl.runs import loop
from tests.small_runs import leave_undrawn, tiny

torch.set_num_threads(1)
settings.register_profile("busy", deadline=None)  # a busy machine is no error
settings.load_profile("busy")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run; look, do not touch."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    loop.train_run(tiny("data.limit=400", "data.limit_test=null", "train.local_epochs=2"), folder)
    return folder


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands draw no figures, which take longer than tiny runs."""
    leave_undrawn(monkeypatch)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets."""
    place = os.environ.get("HSFL_DATA")
    if not place or not Path(place).is_dir():
        pytest.skip("real data: set HSFL_DATA to the folder that has MNIST/, cifar-10-batches-py/ and ham10000/")
    return Path(place)


@pytest.fixture(scope="session", autouse=True)
def usual_ctrl_c() -> Iterator[None]:
    """A test run in the background of a shell has Ctrl-C switched off, and the package respects that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
