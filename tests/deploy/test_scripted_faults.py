"""Faults from a script: five of them quickly, a hundred slowly. `python benchmarks/faults.py` makes a thousand."""

from pathlib import Path

import pytest

from tests.deploy.scripted_faults import (
    FAULTS,
    Sample,
    assert_flat,
    assert_kept,
    assert_once,
    driver,
    run_script,
)

QUICK = (("kill", "main"), ("stop", "edge"), ("cut link", "ada"), ("slow link", "bo"), ("clock", "main"))


def test_five_faults(tmp_path: Path) -> None:
    with driver(tmp_path, seed=1, honest=("ada", "bo")) as there:
        there.begin()
        for kind, victim in QUICK:
            there.strike(kind, victim)
        there.finish()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_hundred_faults_on_two_deployments(tmp_path: Path, seed: int) -> None:
    assert sum(map(len, run_script(tmp_path, seed, 50).took_s.values())) == 50


def test_every_kind_of_fault_is_in_the_table() -> None:
    kinds = [
        "kill",
        "stop",
        "cut link",
        "slow link",
        "full disk",
        "clock",
        "half-open flood",
        "hostile head",
        "cloned bundle",
    ]
    assert list(FAULTS) == kinds
    assert {kind for kind, _ in QUICK} <= set(FAULTS)


def test_a_lost_or_changed_round_is_seen() -> None:
    before = [b"1\n", b"2\n"]
    assert_kept(before, [*before, b"3\n"])
    for now in ([b"1\n"], [b"1\n", b"other\n", b"3\n"], []):
        with pytest.raises(AssertionError):
            assert_kept(before, now)
    assert_once([1, 2, 4])  # the third was on the disk when its server was killed, and its log was not
    with pytest.raises(AssertionError, match="2"):
        assert_once([1, 2, 2, 3])


def test_growth_is_seen_within_the_life_of_a_process() -> None:
    flat = [Sample(7, 300.0 + k % 3, 40 + k % 3) for k in range(16)]
    assert_flat(flat)
    assert_flat([*flat, Sample(8, 900.0, 90)])  # a new process
    with pytest.raises(AssertionError, match="descriptors"):
        assert_flat([*flat, Sample(7, 300.0, 60)])
    with pytest.raises(AssertionError, match="memory"):
        assert_flat([Sample(7, 300.0 + 4 * k, 40) for k in range(16)])
    with pytest.raises(AssertionError, match="memory"):
        assert_flat([Sample(7, 300.0, 40), Sample(7, 500.0, 40)])
