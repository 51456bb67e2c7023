"""On what the gain of own cuts depends: kinds of fleets, and the seconds that decide."""

import numpy as np
import pytest

from hsfl.experiments.gains import ALL, LARGEST, NOT_LARGEST, deep_cut, deep_s, dependence_table, fleet_kind
from hsfl.experiments.table1.fleets import Answer
from hsfl.models.cost_table import CostTable
from hsfl.report.tables import markdown_rows

COST = CostTable(  # what is sent halves at cut 3
    client_forward_flops=np.array([0.0, 1.0, 2.0, 3.0, 4.0]),
    client_backward_flops=np.array([0.0, 2.0, 4.0, 6.0, 8.0]),
    server_forward_flops=np.array([4.0, 3.0, 2.0, 1.0, 0.0]),
    server_backward_flops=np.array([8.0, 6.0, 4.0, 2.0, 0.0]),
    smashed_bits=np.array([30.0, 20.0, 20.0, 10.0, 0.0]),
    gradient_bits=np.array([0.0, 20.0, 20.0, 10.0, 0.0]),
    model_bits=np.arange(5.0),
)


def fleet(max_cut: list[int], gain: float = 1.0, cpu_hz: tuple[float, ...] = (1.0, 2.0, 4.0)) -> Answer:
    """Three clients; the second one has the most samples."""
    rounds = {"single_proposed": [gain, gain], "hsfl": [1.0, 1.0]}
    return Answer("mnist", 1, 1, "drawn", 0.0, {}, rounds, list(cpu_hz), max_cut, [10.0, 30.0, 20.0], 1.0, "")


def test_deep_is_where_less_is_sent() -> None:
    assert deep_cut(COST) == 3


@pytest.mark.parametrize(
    ("max_cut", "expected"),
    [([3, 3, 4], ALL), ([2, 3, 4], LARGEST), ([4, 2, 4], NOT_LARGEST), ([1, 2, 2], NOT_LARGEST)],
)
def test_the_kind_of_a_fleet(max_cut: list[int], expected: str) -> None:
    assert fleet_kind(fleet(max_cut), 3) == expected


def test_seconds_of_the_client_with_the_most_samples() -> None:
    assert deep_s(fleet([3, 3, 3]), COST) == pytest.approx(30 * (3 + 6) / 2.0)


def test_the_table_counts_every_fleet_once() -> None:
    """Four fleets of the first kind, whose gain falls as their largest client gets slower, and one of the last."""
    first = [
        fleet([2, 4, 4], gain, (1.0, speed, 4.0)) for gain, speed in ((1.1, 1.0), (1.2, 2.0), (1.4, 3.0), (1.8, 4.0))
    ]
    text = markdown_rows(dependence_table("drawn", [*first, fleet([4, 1, 4])], {"mnist": COST}))
    rows = {
        line.split("|")[1].strip(): line.split("|")[2].strip() for line in text.splitlines() if line.startswith("| ")
    }
    mean = (1.1 * 1.2 * 1.4 * 1.8) ** 0.25
    assert rows[LARGEST] == f"{mean:.3f} (1.10 to 1.80; n = 4)"
    assert rows[ALL] == "no fleet"
    assert rows[NOT_LARGEST] == "1.000 (1.00 to 1.00; n = 1)"
    assert "-1.00" in text  # the slower, the less
