"""A round that cannot be meant names the setting whose unit to look at."""

from pathlib import Path

import pytest

import hsfl
from hsfl.network.clock import Why
from hsfl.planning.plans.unit_slips import LONGEST_S, SHORTEST_S, unit_note
from tests.naming import names
from tests.small_runs import tiny

MEASURED = ("network.kind=measured", "network.main_up_bps=10", "network.main_down_bps=2e6")


def why(phase: str, per_second: float = 1.0) -> Why:
    return Why(0, phase, 1.0, 1.0, 1.0, per_second)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason", "suspect"),
    [
        (["network.subchannel_hz=1"], why("smashed"), "network.subchannel_hz = 1"),
        (["network.noise_w=1e9"], why("gradient"), "network.noise_w = 1e+09"),
        (["network.main_hz=5"], why("server"), "network.main_hz = 5"),
        (["fleet.cpu_hz=[1,2]"], why("client"), "fleet.cpu_hz = 1, 2"),
        (MEASURED, why("smashed"), "network.main_up_bps = 10"),
        (MEASURED, why("model_up"), "network.main_up_bps = 10"),
        ([*MEASURED, "network.edge_up_bps=3"], why("model_up"), "network.edge_up_bps = 3"),
        (["network.kind=measured", "network.history=past.csv"], why("smashed"), "network.history past.csv"),
        (["framework=cl", "network.main_hz=5"], None, "network.main_hz = 5"),
    ],
)
def test_the_setting_that_decides_the_longest_phase(changes: list[str], reason: Why | None, suspect: str) -> None:
    names(unit_note(tiny(*changes), 2 * LONGEST_S, reason), "2 days", suspect)
    names(unit_note(tiny(*changes), SHORTEST_S / 2, reason), "5e-07 s", suspect)


def test_a_fleet_file_is_named_where_it_decides(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('[[device]]\nname = "a"\ncpu = 1e9\nup = "1Mbps"\ndown = "1Mbps"\n[main_server]\ncpu = 1e9\n')
    config = tiny(f"fleet.file={path}", "fleet.num_clients=1", "fleet.cuts=1", "network.kind=measured")
    for phase in ("client", "smashed", "model_up"):
        names(unit_note(config, 2 * LONGEST_S, why(phase)), f"fleet.file {path}")
    names(unit_note(config, 2 * LONGEST_S, why("server")), "[main_server]", str(path))


@pytest.mark.parametrize("round_s", [0.0, SHORTEST_S, 1.0, LONGEST_S])
def test_what_can_be_meant_is_left_alone(round_s: float) -> None:
    assert unit_note(tiny(), round_s, why("client")) is None


def test_a_plan_says_it() -> None:
    words = ["allocation.samples=1", "fleet.num_clients=2", "network.subchannel_hz=1", "model.name=cnn"]
    plan = hsfl.plan(None, words, input_shape=(1, 8, 8), num_classes=10, samples_per_client=50_000)
    assert plan.round_s > LONGEST_S
    assert any("network.subchannel_hz = 1" in note for note in plan.notes)
