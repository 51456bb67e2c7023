"""The testbed of predictions (benchmarks/testbed.py): what it draws, and one small fleet from measuring to comparing."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsfl.runs.prediction_ranking import rank_cuts
from tests.naming import raises

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from testbed_parts import fleets, machine, results  # noqa: E402
from testbed_parts import trial as testbed_trial  # noqa: E402


@pytest.fixture(scope="module")
def able() -> None:
    """Only where a testbed can be."""
    if reason := machine.lacking():
        pytest.skip(reason)


CUTS = st.integers(2, 9).flatmap(
    lambda units: st.lists(st.integers(1, units).flatmap(lambda most: st.tuples(st.integers(1, most), st.just(most))), min_size=1, max_size=6)
    .map(lambda pairs: (units, tuple(cut for cut, _ in pairs), tuple(most for _, most in pairs)))
)  # fmt: skip


def test_the_drawn_fleets_are_those_of_the_file(tmp_path: Path) -> None:
    """So that a fleet that was measured is drawn, not chosen."""
    written = json.loads(fleets.FLEETS_FILE.read_text())
    fleets.write_fleets(tmp_path / "fleets.json", written["seed"], fleets.draw_fleets(written["seed"], 2))
    assert (tmp_path / "fleets.json").read_text() == fleets.FLEETS_FILE.read_text()
    read = fleets.read_fleets(fleets.FLEETS_FILE)
    assert len(read) >= 6
    assert {fleet.bound for fleet in read.values()} == set(fleets.KINDS)
    for fleet in read.values():
        assert fleet.main_cpu + sum(client.cpu for client in fleet.clients) <= fleets.MOST_CPU
        assert set(fleet.work) == set(fleets.MODELS)


def test_a_file_without_fleets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fleets.json").write_text('{"fleets": [{"name": "x"}]}')
    with raises(ValueError, "fleets.json", "draw"):
        fleets.read_fleets(tmp_path / "fleets.json")


@given(CUTS, st.integers(0, 99))
def test_cut_sets_are_within_limits_and_differ(case: tuple[int, fleets.Cuts, fleets.Cuts], seed: int) -> None:
    units, planned, limits = case
    rng = np.random.default_rng(seed)
    seconds: dict[fleets.Cuts, float] = {}

    def predicted_s(cuts: fleets.Cuts) -> float:
        return seconds.setdefault(cuts, float(rng.uniform(0, 2 * fleets.MOST_S)))

    sets = fleets.cut_sets(planned, limits, units, predicted_s, seed)
    names = [name for of_set in sets.values() for name in of_set]
    by_name = {name: cuts for cuts, of_set in sets.items() for name in of_set}
    assert len(names) == len(set(names))
    assert set(names) <= set(fleets.RULES)
    assert by_name["planned"] == planned
    assert by_name["ones"] == (1,) * len(planned)
    for name, cuts in by_name.items():
        assert all(1 <= cut <= limit for cut, limit in zip(cuts, limits))
        if name.startswith("near"):
            assert sum(abs(a - b) for a, b in zip(cuts, planned)) == 1
    singles = [tuple(min(cut, limit) for limit in limits) for cut in range(1, max(limits) + 1)]
    assert seconds[by_name["single"]] == min(seconds[cuts] for cuts in singles)
    assert ("deep" in by_name) == (seconds[limits] <= fleets.MOST_S)
    assert by_name.get("fl", ()) == (by_name["deep"] if "deep" in by_name and set(limits) == {units} else ())
    movable = sum(limit > 1 for limit in limits)
    assert sum(name.startswith("near") for name in names) == min(2, movable)


@given(st.integers(1, 7), st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
def test_every_set_has_a_block_in_every_pass(num_sets: int, passes: int, rounds: int, seed: int) -> None:
    sets = [(cut,) for cut in range(1, num_sets + 1)]
    order = fleets.schedule(sets, passes, rounds, seed)
    blocks = [order[start : start + rounds] for start in range(0, len(order), rounds)]
    assert len(blocks) == num_sets * passes
    assert all(len(set(block)) == 1 for block in blocks)
    cuts = [block[0][1] for block in blocks]
    assert [block[0][0] for block in blocks] == list(range(len(blocks)))
    for start in range(0, len(cuts), num_sets):
        assert sorted(cuts[start : start + num_sets]) == sets
    assert num_sets == 1 or all(one != other for one, other in pairwise(cuts))


# --- the report


def trial(fleet: str, model: str, sets: dict[str, tuple[list[int], float, list[list[float]]]]) -> dict[str, Any]:
    """As trial.json: for each set its cuts, its prediction, and the rounds of each block."""
    rows = [
        {"set": name, "cuts": cuts, "block": block, "predicted_s": predicted_s, "rounds_s": rounds_s, "ending_s": None}
        for name, (cuts, predicted_s, blocks) in sets.items()
        for block, rounds_s in enumerate(blocks)
    ]
    phases = [{"set": "planned", "block": 0, "phase": "server", "predicted_s": 1.0, "measured_s": 2.0}]
    return {"fleet": fleet, "bound": "links", "model": model, "speed": "quota", "rows": rows, "phases": phases}


ONE = {
    "planned+single": ([1, 2], 10.0, [[10.4, 10.6], [10.3, 10.5]]),
    "ones": ([1, 1], 12.0, [[12.0, 12.2], [12.1, 12.3]]),
    "near-1": (
        [2, 2],
        11.0,
        [[10.0, 10.2], [10.1, 10.1]],
    ),  # faster than planned: a regret, and two pairs the other way round
}
OTHER = {
    "planned": ([2, 2], 5.0, [[5.0, 5.2]]),
    "ones": ([1, 1], 5.05, [[5.1, 5.3]]),  # not told apart
}


def test_the_report_is_of_all_fleets(tmp_path: Path) -> None:
    for name, content in (("a", trial("a", "cnn", ONE)), ("b", trial("b", "cnn", OTHER))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trial.json").write_text(json.dumps(content))
    (tmp_path / "docs").mkdir()
    document, table = tmp_path / "docs" / "prediction.md", tmp_path / "docs" / "results" / "prediction.csv"
    document.write_text(f"before\n{results.BEGIN}\nstale words\n{results.END}\nafter\n")
    results.report([tmp_path / "a", tmp_path / "b"], table, document, "a quiet machine")
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "a quiet machine" in text
    assert "stale words" not in text
    assert (tmp_path / "docs" / "figures" / "prediction.png").stat().st_size > 1000
    results.report([], table, document, "a quiet machine")
    assert document.read_text() == text
    totals = results.totals(results.read_trials(table))
    assert totals.num_sets == 5
    assert totals.worst_regret == pytest.approx(10.45 / 10.1 - 1)
    assert (totals.num_pairs, totals.num_excluded) == (3, 1)
    assert totals.tau == pytest.approx((1 + 1 - 1) / 3)
    errors = [abs(a / b - 1) for a, b in ((10, 10.45), (12, 12.15), (11, 10.1), (5, 5.1), (5.05, 5.2))]
    assert totals.mean_error == pytest.approx(np.mean(errors))
    assert totals.error_95 == pytest.approx(np.percentile(errors, 95))


def test_a_fleet_with_and_without_a_codec_stands_side_by_side(tmp_path: Path) -> None:
    """Each with the cuts that were planned for it: 10.45 s without, 5.1 s with int8."""
    for name, content in (("a", trial("a", "cnn", ONE)), ("b", trial("a", "cnn", OTHER) | {"codec": "int8"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trial.json").write_text(json.dumps(content))
    results._gather([tmp_path], tmp_path / "table.csv")
    trials = results.read_trials(tmp_path / "table.csv")
    assert [(one.work, one.codec) for one in trials] == [("cnn", "none"), ("cnn, int8", "int8")]
    (row,) = [
        line for line in results.report_text(trials, "", "x.png").splitlines() if line.endswith("| 2.00 | 2.05 |")
    ]
    assert row == "| a | cnn, int8 | 10.00, 10.45 | 5.00, 5.10 | 2.00 | 2.05 |"


@pytest.mark.parametrize(
    ("codec", "link"), [("none", {"up": "none", "down": "none"}), ("topk:0.1/int8", {"up": "topk:0.1", "down": "int8"})]
)
def test_a_trial_is_planned_and_deployed_with_its_codec(codec: str, link: dict[str, str], tmp_path: Path) -> None:
    effort = testbed_trial.Effort(codec=codec)
    settings = testbed_trial.Trial(fleets.SMALL, "cnn", tmp_path, effort, print).settings
    assert settings["link"] == link


def test_a_document_without_the_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trial.json").write_text(json.dumps(trial("a", "cnn", ONE)))
    (tmp_path / "document.md").write_text("no place\n")
    with raises(ValueError, "document.md", results.BEGIN):
        results.report([tmp_path], tmp_path / "table.csv", tmp_path / "document.md", "")
    with raises(ValueError, str(tmp_path / "empty"), "trial.json"):
        results.report([tmp_path / "empty"], tmp_path / "table.csv", tmp_path / "document.md", "")


def test_rows_give_the_ranking_of_the_runs(tmp_path: Path) -> None:
    (tmp_path / "trial.json").write_text(json.dumps(trial("a", "cnn", ONE)))
    results._gather([tmp_path], tmp_path / "table.csv")
    (read,) = results.read_trials(tmp_path / "table.csv")
    again = rank_cuts([run for name in ONE for run in runs_of(name)], "planned+single")
    assert read.ranking == again


def runs_of(name: str) -> list[Any]:
    cuts, predicted_s, blocks = ONE[name]
    rows = [
        {"set": name, "cuts": " ".join(map(str, cuts)), "block": str(block), "predicted_s": str(predicted_s), "ending_s": "",
         "rounds_s": " ".join(map(str, rounds_s))}
        for block, rounds_s in enumerate(blocks)
    ]  # fmt: skip
    return [results._run_of(row) for row in rows]


# --- the machine


def left() -> list[str]:
    """Namespaces, cgroups and processes of a testbed."""
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    root = machine._quota_root()
    groups = [str(path) for path in [root, *root.glob("*/")] if path.exists()] if root is not None else []
    commands = [(path / "cmdline").read_bytes() for path in Path("/proc").glob("[0-9]*") if (path / "cmdline").exists()]
    processes = [str(words) for words in commands if b"testbed_parts" in words]
    return [row for row in spaces.splitlines() if row.startswith(machine.PREFIX)] + groups + processes


@pytest.mark.slow
@pytest.mark.usefixtures("able")
def test_a_small_fleet_is_measured_planned_deployed_and_compared(tmp_path: Path) -> None:
    """Three clients, a small CNN: the rounds are as planned, more or less; figures of a busy machine prove no more."""
    words = [sys.executable, str(BENCHMARKS / "testbed.py"), "--small", "--keep", str(tmp_path / "kept")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert left() == []
    content = json.loads((tmp_path / "kept" / "trial.json").read_text())
    names = {name for row in content["rows"] for name in row["set"].split("+")}
    assert {"planned", "ones", "deep"} <= names
    assert all(len(row["rounds_s"]) == 2 for row in content["rows"])
    for row in content["rows"]:
        plan = json.loads((tmp_path / "kept" / "plans" / row["set"] / "plan.json").read_text())
        assert (plan["cuts"], plan["round_s"]) == (row["cuts"], pytest.approx(row["predicted_s"]))
        assert 0.2 < row["predicted_s"] / np.median(row["rounds_s"]) < 5
    smashed = [row for row in content["phases"] if row["phase"] == "smashed" and "ones" in row["set"]]
    assert all(
        0.7 < row["predicted_s"] / row["measured_s"] < 1.3 for row in smashed
    )  # links are not slowed by other work


@pytest.mark.slow
@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(tmp_path: Path, number: signal.Signals) -> None:
    """A testbed that is ended while its nodes measure themselves; what a killed one leaves goes at the next start."""
    words = [sys.executable, str(BENCHMARKS / "testbed.py")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*words, "--small", "--keep", str(tmp_path / "kept")], stdout=log, stderr=log)
        until_s = time.monotonic() + 120
        while not (tmp_path / "kept" / "measure-c3.log").exists():
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until_s
            time.sleep(0.05)
        os.kill(process.pid, number)
        process.wait(60)
    assert process.returncode == (130 if number != signal.SIGKILL else -signal.SIGKILL)
    if number == signal.SIGKILL:
        assert left() != []
        subprocess.run([*words, "clean"], check=True, timeout=60)
    assert left() == []


@pytest.mark.slow
@pytest.mark.usefixtures("able")
def test_links_have_their_rates_and_delays_and_one_testbed_runs_at_a_time() -> None:
    """By plain sockets. A packet has 52 bytes of headers in 1514 at most; small messages are not faster than the link."""
    nodes = [machine.Node("main"), machine.Node("edge"), machine.Node("far", None, 10e6, 20e6, 0.01)]
    with machine.Machine(nodes) as bed:
        with raises(ValueError, str(machine.LOCK)), machine.Machine(nodes):
            pass
        server = subprocess.Popen(
            [sys.executable, "-c", ANSWERS, bed.nodes["main"].namespace, "0.0.0.0"], stdout=subprocess.PIPE
        )
        bed.processes.append(server)
        assert server.stdout is not None
        server.stdout.readline()
        asked = subprocess.run(
            [sys.executable, "-c", ASKS, bed.nodes["far"].namespace, bed.address("main", "far")],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        empty_s, up_s, down_s, small_s = map(float, asked.stdout.split())
    assert 0.02 < empty_s < 0.03
    assert 8e6 / (up_s - empty_s) == pytest.approx(9.6e6, rel=0.05)
    assert 8e6 / (down_s - empty_s) == pytest.approx(19.2e6, rel=0.05)
    assert 8 * 20_000 / (small_s - empty_s) < 13e6
    assert left() == []


JOIN = f"""
import socket, sys, time
sys.path.insert(0, {str(BENCHMARKS / "testbed_parts")!r})
from enter import join_namespace
join_namespace(sys.argv[1])
"""
ANSWERS = (
    JOIN
    + """
door = socket.create_server((sys.argv[2], 7433))
print("ready", flush=True)
while True:
    call, _ = door.accept()
    call.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while head := call.recv(8):
        up, down = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
        while up:
            up -= len(call.recv(min(up, 65536)))
        call.sendall(bytes(down))
"""
)
ASKS = (
    JOIN
    + """
host, port = sys.argv[2].split(":")
call = socket.create_connection((host, int(port)))
call.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def ask_s(up, down):
    began_s = time.perf_counter()
    call.sendall(up.to_bytes(4, "big") + down.to_bytes(4, "big") + bytes(up))
    while down:
        down -= len(call.recv(65536))
    return time.perf_counter() - began_s
for up, down in ((0, 1), (1_000_000, 1), (0, 1_000_000), (20_000, 1)):
    print(min(ask_s(up, down) for _ in range(4)))
"""
)
