"""A fleet too large to list: records and page hold quantiles, a run goes on to the bit, and nothing loops over clients."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hsfl.config import read_config
from hsfl.errors import InputError
from hsfl.network.devices import MANY_CLIENTS
from hsfl.planning.cuts import choose_cuts
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.rounds.round_clock import RoundClock
from hsfl.planning.world import world_of
from hsfl.report.page.page import write_page
from hsfl.report.page.page_words import setting_text
from hsfl.runs.loop import train_run
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder import write_records
from hsfl.runs.run_folder.folder import RunFolder, record_line
from tests.naming import names
from tests.planning.rounds.test_radio_round import COST
from tests.small_runs import tiny

MANY = MANY_CLIENTS + 500
WORDS = (
    f"fleet.num_clients={MANY}",
    "fleet.cuts=fastest",
    "train.clients_per_round=4",
    "train.receivers=chosen",
    "network.cells=5",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    place = tmp_path_factory.mktemp("crowd") / "run"
    train_run(tiny(*WORDS, "train.choose=samples", "train.tau_s=1e9"), place)
    return RunFolder(place)


def test_records_hold_quantiles_and_read_back(folder: RunFolder) -> None:
    records, clients = folder.rounds(), folder.clients()
    assert len(records) == 3
    for record in records:
        crowd = record.crowd
        assert (record.num_clients, record.num_started, record.num_kept) == (
            MANY,
            crowd["num_started"],
            crowd["num_kept"],
        )
        assert 0 < record.num_kept <= 4
        assert sum(crowd["cuts"].values()) == record.num_started
        assert crowd["finish_s"][-1] <= record.round_s
        assert crowd["finish_s"] == sorted(crowd["finish_s"])
        assert sum(crowd["straggler_s"].values()) <= record.round_s * (1 + 1e-6)
        assert len(record_line(record)) < 4000
    assert clients.crowd["num_clients"] == MANY
    assert sum(clients.crowd["cuts"].values()) == MANY
    assert clients.crowd["num_samples"][0] == 2, "drawn with replacement: 60 images for all"
    assert folder.clients_path.stat().st_size < 3000
    assert len(folder.cuts().cuts) == MANY


def test_a_run_of_a_crowd_goes_on_to_the_same_bits(folder: RunFolder, tmp_path: Path) -> None:
    words = (*WORDS, "train.choose=samples", "train.tau_s=1e9")
    train_run(tiny(*words, "train.rounds=2"), tmp_path / "half")
    train_run(tiny(*words), tmp_path / "half", resume=True)
    whole, half = (path.joinpath("model.safetensors").read_bytes() for path in (folder.path, tmp_path / "half"))
    assert whole == half


def test_the_page_is_small_and_shows_quantiles(folder: RunFolder, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_page([folder.path], page)
    text = page.read_text()
    assert len(text) < 300_000
    names(text, "too many")
    assert f'"num_clients":{MANY}' in text.replace(": ", ":")
    names(text, "60 images", "with replacement", f"{MANY:,} clients")


def test_damaged_crowds_are_told(folder: RunFolder, tmp_path: Path) -> None:
    lines = folder.rounds_path.read_text().splitlines()
    copy = RunFolder(tmp_path)
    for field, value, words in (("waiting_s", [1.0], "quantiles"), ("num_clients", 3, "client")):
        row = json.loads(lines[0])
        row["crowd"][field] = value
        copy.rounds_path.write_text(json.dumps(row) + "\n")
        with pytest.raises(InputError, match=words):
            copy.rounds()


def test_a_page_shows_the_first_of_many_given_cuts() -> None:
    said = setting_text(list(range(5000)))
    assert said.startswith("0, 1, 2, ")
    assert said.endswith("199, ... (5,000 in all)")


def test_lists_of_a_policy_become_quantiles() -> None:
    says = {"policy": "proposed", "server_hz": list(range(100)), "cell_hz": [1.0, 2.0], "resources": {"share": []}}
    short = write_records.with_quantiles(says, 100)
    assert short["server_hz"][0] == 0
    assert short["server_hz"][3] == pytest.approx(49.5)
    assert short["cell_hz"] == [1.0, 2.0]
    assert "resources" not in short


def _lines_run(num_clients: int) -> int:
    """Lines of the package that drawing, planning and clocking a fleet executes."""
    config = read_config(
        None,
        [
            f"fleet.num_clients={num_clients}",
            "network.cells=7",
            "train.clients_per_round=300",
            "fleet.cuts=fastest",
            "allocation.policy=even",
        ],
    )
    config = config.model_copy(update={"network": replace_radius(config.network)})
    num_samples, count = np.full(num_clients, 20.0), 0
    package = str(Path(write_records.__file__).parent.parent)

    def trace(frame, event, argument):
        nonlocal count
        if not frame.f_code.co_filename.startswith(package):
            return None
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        world = world_of(config, COST)
        cuts, _ = choose_cuts(CutTask.of_run(config, world, num_samples))
        clock = RoundClock(config, world, cuts, num_samples)
        line, _ = clock.round(0, clock.chosen(0))
        write_records.round_crowd(line, cuts)
    finally:
        sys.settrace(None)
    return count


def replace_radius(network):
    return network.model_copy(update={"radius_m": 100.0})


def test_nothing_loops_over_clients() -> None:
    """Four times the clients, about as many lines: only blocks of thousands of clients are counted through."""
    small, large = _lines_run(3000), _lines_run(12_000)
    assert large - small < 300, f"{small} lines for 3,000 clients, {large} for 12,000"


def test_a_crowd_in_one_cell_allocates_to_its_participants_alone() -> None:
    """The same round as that of a fleet of the participants alone, whose gains and speeds are drawn by hand."""
    config = read_config(
        None,
        [f"fleet.num_clients={MANY}", "train.clients_per_round=5", "train.receivers=chosen", "allocation.policy=proposed",
         "fleet.cuts=2", "allocation.gap=0.001"],
    )  # fmt: skip
    world, num_samples = world_of(config, COST), np.full(MANY, 20.0)
    clock = RoundClock(config, world, (2,) * MANY, num_samples)
    chosen = clock.chosen(0)
    line, says = clock.round(0, chosen)
    clients = np.array(chosen)
    few = replace(world, fleet=world.fleet.take(clients), recorded=world.draw(0).take(clients))
    few = replace(
        few,
        recorded=replace(
            few.recorded, **{n: getattr(few.recorded, n)[None] for n in ("cpu_hz", "main_gain", "edge_gain")}
        ),
    )
    alone = RoundClock(
        config.model_copy(update={"fleet": config.fleet.model_copy(update={"num_clients": 5})}),
        few,
        (2,) * 5,
        num_samples[:5],
    )
    other, _ = alone.round(0, tuple(range(5)))
    np.testing.assert_allclose(line.end_s[:, clients], other.end_s, rtol=1e-9)
    assert says["gap"] <= 1e-3 * (1 + 1e-6)
    assert "server_hz" not in says


def test_a_large_fleet_that_gets_every_model_is_told_so() -> None:
    words = [f"fleet.num_clients={MANY}", "fleet.cuts=fastest", "train.clients_per_round=4"]
    assert any("set train.receivers=chosen" in note for note in prepare(tiny(*words)).notes)
    assert not any("receivers" in note for note in prepare(tiny(*words, "train.receivers=chosen")).notes)


def test_a_straggler_of_nobody() -> None:
    """A round in which nobody takes part has quantiles of nothing."""
    config = read_config(None, ["fleet.num_clients=12", "fleet.cuts=2"])
    clock = RoundClock(config, world_of(config, COST), (2,) * 12, np.full(12, 20.0))
    line = clock.round(0, ())[0]
    crowd = write_records.round_crowd(replace(line, straggler=-1), (2,) * 12)
    assert crowd["num_started"] == 0
    assert crowd["straggler_s"] == {}
    assert crowd["waiting_s"] == [0.0] * 7
