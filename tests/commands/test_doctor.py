"""`hsfl doctor`: a row for everything that HSFL needs, what to do where it is missing, and no traceback whatever is broken."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hsfl.allocation import numba_cache, solvers
from hsfl.commands import doctor, self_test
from hsfl.commands.self_test import SelfTest
from tests.naming import names, raises
from tests.small_runs import Answer, hsfl

SELF_TESTS = ("train_hsfl", "train_fl", "allocate_exactly")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the self-test, which has tests of its own."""
    for name in SELF_TESTS:
        monkeypatch.setattr(SelfTest, name, lambda self: "done")


def rows(answer: Answer) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in answer.json()["checks"]}


def without(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str | None]) -> None:
    """As if packages had these versions; None: as if they were not installed."""
    really: Callable[[str], str | None] = doctor.version_of
    monkeypatch.setattr(doctor, "version_of", lambda name: versions[name] if name in versions else really(name))


def test_this_machine_is_well() -> None:
    answer = hsfl("doctor", "--json")
    assert (answer.code, answer.json()["works"]) == (0, True), answer
    checks = rows(answer)
    for name in ("Python", "packages", "data digits", "self-test: HSFL", "self-test: FL"):
        assert checks[name]["status"] == "ok", checks[name]
    assert checks.keys() >= {f"extra {extra}" for extra in doctor.EXTRAS} | {"cores", "memory", "data folder", "SCIP"}
    names(checks["packages"]["found"], "torch 2", "numpy")
    names(checks["self-test: FL"]["found"], "to the bit")


@pytest.mark.usefixtures("quick")
def test_for_people_there_is_a_line_for_each_check_and_one_for_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, {"ray": None})
    answer = hsfl("doctor")
    assert answer.code == 0
    lines = answer.out.splitlines()
    (place,) = (i for i, line in enumerate(lines) if "extra ray " in line and "comes with" not in line)
    assert lines[place].startswith("missing")
    assert lines[place + 1].strip().startswith('-> pip install "ray')
    assert lines[-1] == "all that HSFL needs works"


@pytest.mark.usefixtures("quick")
def test_without_the_optimiser_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, {"numba": None, "pyscipopt": None})
    answer = hsfl("doctor", "--json")
    assert answer.code == 0
    checks = rows(answer)
    for name in ("extra plan", "extra demo", "numba cache", "SCIP", "self-test: allocation"):
        assert checks[name]["status"] == "missing"
        names(checks[name]["advice"], '"numba', '"pyscipopt')
    assert checks["self-test: HSFL"]["status"] == "ok"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("version", "found"), [(None, "torch missing"), ("1.13.1", "torch 1.13.1 (needs >=2.6)")])
def test_what_everyone_needs_must_be_there_and_new_enough(
    version: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, {"torch": version})
    answer = hsfl("doctor", "--json")
    assert (answer.code, answer.json()["works"]) == (1, False)
    row = rows(answer)["packages"]
    assert row["status"] == "fails"
    names(row["found"], found)
    assert row["advice"] == 'pip install "torch>=2.6"'
    names(hsfl("doctor").out.splitlines()[-1], "does not work", "packages")


@pytest.mark.usefixtures("quick")
def test_what_breaks_is_a_row_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: SelfTest) -> str:
        raise RuntimeError("libgomp.so: cannot open\nand more")

    monkeypatch.setattr(SelfTest, "train_hsfl", broken)
    answer = hsfl("doctor", "--json")
    assert answer.code == 1
    row = rows(answer)["self-test: HSFL"]
    assert (row["status"], row["found"]) == ("fails", "RuntimeError: libgomp.so: cannot open")
    assert rows(answer)["self-test: FL"]["status"] == "ok"


@pytest.mark.usefixtures("quick")
def test_a_cold_optimiser_is_compiled_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_cache, "is_cold", lambda: True)
    row = rows(hsfl("doctor", "--json"))["self-test: allocation"]
    assert (row["status"], row["advice"]) == ("warning", "hsfl doctor --compile")
    assert rows(hsfl("doctor", "--compile", "--json"))["self-test: allocation"]["status"] == "ok"


@pytest.mark.usefixtures("quick")
def test_a_cache_that_cannot_be_written_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_cache, "cache_dir", lambda: "")
    answer = hsfl("doctor", "--json")
    assert answer.code == 0
    names(rows(answer)["numba cache"], "warning", "NUMBA_CACHE_DIR")


@pytest.mark.usefixtures("quick")
def test_data_sets_are_found_by_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HSFL_DATA", str(tmp_path))
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py/data_batch_1").write_text("never read")
    checks = rows(hsfl("doctor", "--json"))
    names(checks["data folder"]["found"], str(tmp_path), "HSFL_DATA")
    assert checks["data cifar10"]["status"] == "ok"
    assert (checks["data mnist"]["status"], checks["data mnist"]["advice"]) == ("missing", "hsfl data fetch mnist")
    monkeypatch.setenv("HSFL_DATA", str(tmp_path / "nowhere"))
    assert rows(hsfl("doctor", "--json"))["data folder"]["status"] == "warning"


@pytest.mark.usefixtures("quick")
def test_more_threads_than_cores_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch, "get_num_threads", lambda: 10**6)
    names(rows(hsfl("doctor", "--json"))["cores"], "warning", "1000000 threads", "OMP_NUM_THREADS=")


@pytest.mark.parametrize("kind", ["first", "second"])
def test_memory_of_a_container(kind: str, tmp_path: Path) -> None:
    """8 GB free on the machine; the container may take 5, has taken 3, of which 1 is a cache that can be given back: 3 are left."""
    (tmp_path / "meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable:    8000000 kB\n")
    if kind == "first":
        folder, limit, taken, cache = tmp_path / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
    else:
        folder, limit, taken, cache = tmp_path, "memory.max", "memory.current", ""
    folder.mkdir(exist_ok=True)
    (folder / limit).write_text("5000000000\n")
    (folder / taken).write_text("3000000000\n")
    (folder / "memory.stat").write_text(f"anon 7\n{cache}inactive_file 1000000000\n")
    assert doctor.available_bytes(tmp_path / "meminfo", tmp_path) == 3e9
    (folder / limit).write_text("max\n")
    assert doctor.available_bytes(tmp_path / "meminfo", tmp_path) == 8e6 * 1024
    assert doctor.available_bytes(tmp_path / "nothing", tmp_path / "nothing") is None


def test_models_that_differ_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "_train", lambda framework, *settings: framework.encode())
    test = SelfTest()
    with raises(RuntimeError, "HSFL did not train"):
        test.train_fl()
    test.train_hsfl()
    with raises(ArithmeticError, "different models"):
        test.train_fl()


def test_an_allocation_is_checked_by_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    names(SelfTest().allocate_exactly(), "proven to")
    really = solvers.allocate

    def swapped(scenario: Any, cuts: Any, solver: str, gap: float) -> Any:
        """An optimiser that is worse than no optimiser."""
        return really(scenario, cuts, {"exact": "even", "even": "exact"}[solver], gap=gap)

    monkeypatch.setattr(solvers, "allocate", swapped)
    with raises(ArithmeticError, "shared evenly"):
        SelfTest().allocate_exactly()


def test_help_has_an_example() -> None:
    names(hsfl("doctor", "--help").out.partition("Example")[2], "hsfl doctor --json")
