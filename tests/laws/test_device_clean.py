"""Law: where a tensor lies decides nothing but where it is computed. A run on a device that stands in for a GPU, which refuses to be mixed with the CPU, is
the run on the CPU to the bit: frameworks, codecs, sums, clipping, other averages, attacks, statistics, tests, checkpoints, replays.

`tests.stand_in_gpu` says what the device is and what it cannot show. It lives in a process of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import backend_registration

from hsfl.framework_table import METHODS
from hsfl.training.codecs.codec import Codec
from hsfl.training.codecs.float16 import Float16
from hsfl.training.codecs.int8 import Int8
from tests.laws.device_cases import CASES, MEASURED

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch takes no device in Python",
)
OPERATIONS = 500  # at least; a run that only seems to be on the device makes none


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str | None]]:
    """How many operations the device made for each case, and what is wrong."""
    words = [sys.executable, "-m", "tests.laws.device_cases", str(tmp_path_factory.mktemp("device"))]
    answer = subprocess.run(words, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    lines: list[Any] = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("[")]
    assert answer.returncode == 0, answer.stderr
    return {name: (count, problem) for name, count, problem in lines}


@pytest.mark.parametrize("name", [*CASES, MEASURED])
def test_a_run_on_a_device_is_the_run_on_the_cpu(name: str, played: dict[str, tuple[int, str | None]]) -> None:
    count, problem = played[name]
    assert problem is None, problem
    assert count > OPERATIONS


def test_every_framework_is_played() -> None:
    frameworks = {
        word.removeprefix("framework=") for case in CASES.values() for word in case.words if "framework" in word
    }
    assert frameworks | {"hsfl"} >= {name for name, row in METHODS.items() if row.built_in}


@pytest.mark.parametrize("codec", [Int8(), Float16()])
def test_the_payload_of_an_empty_tensor_lies_where_the_tensor_lies(codec: Codec) -> None:
    payload = codec.encode(torch.zeros(0, 3, device="meta"), "up", None)
    assert {array.device.type for array in payload.arrays.values()} == {"meta"}
