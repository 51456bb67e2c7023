"""What a device trains on: all of its samples, unless it is to judge the model, or its settings withhold some."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hsfl.config import parse_config
from hsfl.deploy.client_setup import ClientSetup, prepare_setup
from hsfl.deploy.settings import ClientSettings, sent_settings
from hsfl.deploy.wire.client_messages import Welcome
from tests.deploy.fleet import RUN, changed

NUM_SAMPLES = 50


def setup_of(data: dict[str, Any], evaluates: bool, **settings: Any) -> ClientSetup:
    config = parse_config(changed(RUN | {"data": {"name": "digits"}, "fleet": {"num_clients": 2}}))
    own = ClientSettings(name="ada", data=data, **settings)
    return prepare_setup(own, Welcome(0, sent_settings(config), [1, 8, 8], 10, evaluates))


@pytest.fixture
def pixels(tmp_path: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (NUM_SAMPLES, 1, 8, 8)), np.arange(NUM_SAMPLES) % 10
    np.savez(tmp_path / "own.npz", x=x.astype(np.uint8), y=y)
    return {"name": f"npz:{tmp_path / 'own.npz'}"}


@pytest.mark.parametrize(
    ("evaluates", "fraction", "num_test"),
    [(False, None, 0), (True, None, 10), (True, 0, 0), (False, 0.4, 20), (False, 0, 0)],
)
def test_what_is_withheld(pixels: dict[str, Any], evaluates: bool, fraction: float | None, num_test: int) -> None:
    """Nothing of a device that judges no model, where it does not say how much, and nothing where it says so."""
    data = pixels if fraction is None else pixels | {"test_fraction": fraction}
    setup = setup_of(data, evaluates)
    assert setup.data.num_samples == sum(setup.class_counts) == NUM_SAMPLES - num_test
    assert (0 if setup.test is None else len(setup.test)) == (num_test if evaluates else 0)


def test_a_client_of_a_simulation_has_the_simulations_samples(pixels: dict[str, Any]) -> None:
    """Its twin withholds a fifth, whoever judges the model."""
    assert setup_of(pixels, False, as_client=0).data.num_samples == 0.8 * NUM_SAMPLES / 2
