"""Rounds in which few train and all receive the model: bounds hold and the gap is kept, in one cell and in several."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import hsfl
from hsfl.allocation.policy_table import POLICIES
from hsfl.config import read_config
from hsfl.planning.rounds.round_clock import RoundClock
from hsfl.planning.world import world_of
from tests.planning.rounds.test_radio_round import COST, WORDS

LARGE = replace(COST, model_bits=30 * COST.model_bits)  # distribution counts as much as training
SAMPLES = np.arange(20.0, 44.0, 2.0)


def a_round(*changes: str, deep: bool = False):
    """The first round; deep: those who start have cut 4, the others cut 1."""
    config = read_config(None, [*WORDS, *changes])
    world = world_of(config, LARGE)
    chosen = RoundClock(config, world, (1,) * 12, SAMPLES).chosen(0)
    cuts = tuple(4 if deep and k in chosen else 1 for k in range(12))
    return RoundClock(config, world, cuts, SAMPLES).round(0, chosen)


@pytest.mark.parametrize("cells", [1, 3])
@pytest.mark.parametrize("sharing", ["bandwidth", "exclusive"])
@pytest.mark.parametrize("chosen", [1, 3, 11])
def test_both_stages_together_keep_the_gap(cells: int, sharing: str, chosen: int) -> None:
    words = (f"network.cells={cells}", f"allocation.sharing={sharing}", "network.num_subchannels=12")
    for gap in (0.02, 1e-3):
        line, says = a_round(
            *words, f"train.clients_per_round={chosen}", f"allocation.gap={gap}", "allocation.policy=proposed"
        )
        assert says["status"] == "optimal"
        assert says["gap"] <= gap * (1 + 1e-6)
        assert says["lower_bound_s"] <= line.round_s * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_no_bound_is_above_a_round_where_few_own_subchannels_and_many_share_them(seed: int) -> None:
    """Two clients train on subchannels of their own; the model goes to all over shared ones, which may take less than to the
    two."""
    words = (
        "network.cells=2",
        f"seed={seed}",
        "train.clients_per_round=2",
        "fleet.min_cut=1",
        "allocation.time_limit_s=5",
    )
    rounds = [
        a_round(*words, f"allocation.policy={policy}", f"allocation.gap={gap}", deep=True)
        for policy, gap in (("proposed", 1e-3), ("proposed", 0.2), ("ecfa", 1e-3), ("etra_even", 1e-3))
    ]
    least_s = min(line.round_s for line, _ in rounds)
    assert max(says["lower_bound_s"] for _, says in rounds) <= least_s * (1 + 1e-9)


@pytest.fixture
def own_policy() -> Iterator[str]:
    """A policy of one's own that divides everything evenly."""

    def evenly(scenario, cuts):  # type: ignore[no-untyped-def]
        even = np.full((len(cuts), scenario.num_subchannels), 1.0 / len(cuts))
        return {"server_hz": np.full(len(cuts), scenario.main_hz / len(cuts)), "share": even}

    hsfl.register_policy("evenly", allocate=evenly)
    yield "evenly"
    POLICIES.pop("evenly")


@pytest.mark.parametrize("cells", [1, 3])
def test_a_policy_that_leaves_clients_late_has_no_bound(cells: int, own_policy: str) -> None:
    words = (f"network.cells={cells}", "allocation.sharing=bandwidth", f"allocation.policy={own_policy}")
    free, says = a_round(*words)
    assert 0.0 < says["lower_bound_s"] <= free.round_s
    line, says = a_round(*words, f"train.tau_s={0.5 * free.round_s}")
    assert line.dropped.any()
    assert says["lower_bound_s"] == 0.0
