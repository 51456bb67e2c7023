"""What `hsfl measure --server` times of a round's end."""

import time
from pathlib import Path

import pytest
import torch

from hsfl.runs import server_timing
from hsfl.runs.server_timing import time_server_parts
from hsfl.training.batches import Images
from tests.deploy.kits import small_kit


def test_a_test_takes_in_proportion_as_long_for_all_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model here takes 5 ms for each thousand samples."""
    model, tested = small_kit().model, list[int]()

    def evaluate(model: object, images: Images, num_outputs: int, size: int) -> None:
        tested.append(len(images))
        time.sleep(5e-6 * len(images))

    monkeypatch.setattr(server_timing, "evaluate_model", evaluate)
    images = Images(torch.zeros(4000, 1, 8, 8, dtype=torch.uint8), torch.zeros(4000, dtype=torch.int64), (0.5,), (0.5,))
    parts = time_server_parts(model, tmp_path, images, 10)
    assert tested == [server_timing.MOST_TESTED] * server_timing.TRIES
    assert 0.02 <= parts["test"] < 2.0
    assert min(parts.values()) > 0
    assert list(tmp_path.iterdir()) == []
    assert set(time_server_parts(model, tmp_path, None, 10)) == {"average", "checkpoint"}
