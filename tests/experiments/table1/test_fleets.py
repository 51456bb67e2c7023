"""The clocks of columns on fleets: as a run would take them, with cuts that are right for each column's own allocation."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hsfl.allocation.exact import exact
from hsfl.config import RunConfig, with_changes
from hsfl.experiments.gains import find_gains
from hsfl.experiments.study_request import StudyRequest
from hsfl.experiments.table1 import tau_row
from hsfl.experiments.table1.columns import ALL, COLUMNS, DATASETS, GAINS, SEVEN, SIZES, trace_config
from hsfl.experiments.table1.fleets import (
    GAINS_CUTS_FILE,
    cost_of,
    make_point,
    read_answer,
    read_cuts,
    shipped_cuts,
    solve_fleet,
    solve_points,
    write_cuts,
)
from hsfl.experiments.table1.traces import Trace, at_budget, find_trace, read_trace, trace_file_name, trace_fits
from hsfl.planning.cuts import _phases
from hsfl.planning.policy_cuts import sampled_scenarios
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.world import count_batches, world_of
from hsfl.runs.loop import train_run
from hsfl.runs.run_folder.folder import RunFolder

SEED, FLEET = 1, 4
RESULTS = Path(__file__).parents[3] / "docs" / "results"


def quietly(text: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("table1")


@pytest.fixture(scope="module")
def trace(out: Path) -> Trace:
    """The twins' training at smoke scale."""
    return get_trace(out, "twins")


def get_trace(out: Path, name: str) -> Trace:
    return find_trace(ask(out), "digits", name, SEED)


def ask(out: Path) -> StudyRequest:
    return StudyRequest(out, "smoke", None, quietly)


@pytest.fixture(scope="module")
def answer(out: Path, trace: Trace):  # type: ignore[no-untyped-def]
    point = make_point("digits", "smoke", SEED, FLEET, trace.num_samples, ALL)
    solve_points([point], out / "fleets", {}, quietly)
    return read_answer(out / "fleets", point)


def column_config(name: str, cuts: list[int]) -> RunConfig:
    """The run that a column stands for."""
    column = COLUMNS[name]
    trace = column.trace if column.trace != "twins" else "twins"
    cut = f"fleet.cuts={cuts}" if column.framework == "hsfl" else f"fleet.one_cut={cuts[0]}"
    words = [f"framework={column.framework}", f"allocation.policy={column.policy}", f"fleet.seed={FLEET}", cut]
    return with_changes(trace_config("digits", "smoke", SEED, trace), words)


@pytest.mark.parametrize("name", ["hsfl", "hsfl_even", "splitfed_v1", "single_proposed", "fl", "fsl", "sl", "cl"])
def test_reclocking_a_trace_equals_running_it(name: str, answer, out: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trace = get_trace(out, COLUMNS[name].trace)
    train_run(column_config(name, answer.cuts[name]), tmp_path / "run")
    records = RunFolder(tmp_path / "run").rounds()
    assert len(records) == len(trace.rounds)
    assert [r.round_s for r in records] == pytest.approx(answer.round_s[name][: len(records)], rel=1e-9)
    for record, row in zip(records, trace.rounds):
        assert record.train_loss == pytest.approx(row.train_loss, rel=1e-3)
        assert record.test_accuracy == pytest.approx(row.test_accuracy, abs=0.011)  # one image of 100


@pytest.mark.parametrize("name", ["splitfed_v2", "psl", "locfedmix_sl", "cpsl"])
def test_the_clock_without_data_is_that_of_a_run(name: str, answer, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    config = with_changes(column_config(name, answer.cuts[name]), ["train.rounds=1"])
    train_run(config, tmp_path / "run")
    (record,) = RunFolder(tmp_path / "run").rounds()
    assert record.round_s == pytest.approx(answer.round_s[name][0], rel=1e-6)


OPTIONS = ["fsl.average=server", "psl.cut_gradient=true", "sl.hand_optimizer=true", "fl.needs_storage=true"]


@pytest.mark.parametrize("option", OPTIONS)
def test_the_options_of_a_contender_count_in_its_seconds(option: str, trace: Trace, tmp_path: Path) -> None:
    """Heads that stay at home take no time, and an optimiser that travels takes some: as in a run of the contender."""
    label = f"{option.partition('.')[0]},options.{option}"
    point = make_point("digits", "smoke", SEED, FLEET, trace.num_samples, (label,))
    found = solve_fleet(point, cost_of(point.config))
    changes = [f"fleet.one_cut={found.cuts[label][0]}", f"fleet.seed={FLEET}", "train.rounds=1"]
    train_run(with_changes(trace_config("digits", "smoke", SEED, label), changes), tmp_path / "run")
    (record,) = RunFolder(tmp_path / "run").rounds()
    assert record.round_s == pytest.approx(found.round_s[label][0], rel=1e-6)


def test_every_cell_of_the_2x2_has_the_cuts_of_its_own_allocation() -> None:
    """Against all cuts of three clients that hold up to three units, on the samples that plans are made on."""
    point = make_point("digits", "smoke", SEED, 2, [40, 60, 60], GAINS)
    changes = ["fleet.num_clients=3", "fleet.max_cut=[3, 3, 2]", "network.num_subchannels=4", "allocation.samples=6"]
    config = with_changes(point.config, changes)
    cost = cost_of(config)
    found = solve_fleet(type(point)(config, point.num_samples, GAINS), cost)
    world = world_of(config, cost)
    num_batches = count_batches(config, config.network.sample_scale * np.array(point.num_samples))
    planned_on = sampled_scenarios(CutTask(config, world, num_batches))

    def proposed_s(cuts: tuple[int, ...]) -> float:
        return float(np.mean([exact(each, np.array(cuts), gap=1e-3, time_limit_s=1.0).round_s for each in planned_on]))

    def even_s(cuts: tuple[int, ...]) -> float:
        from hsfl.network.latency import client_round_s

        times = _phases(world, np.array(cuts), config.train.batch_size)
        return float((client_round_s(times, num_batches).max(axis=-1) + times.model_down_s.max(axis=-1)).mean())

    own, single = list(product((1, 2, 3), (1, 2, 3), (1, 2))), [(c,) * 3 for c in (1, 2)]
    for mean_s, names in ((proposed_s, ("single_proposed", "hsfl")), (even_s, ("single_even", "hsfl_even"))):
        for name, options in zip(names, (single, own)):
            assert mean_s(tuple(found.cuts[name])) <= min(map(mean_s, options)) * 1.002, name
    assert found.cuts["splitfed_v1"] == found.cuts["scls"] == [2, 2, 2]
    gains = find_gains([found])
    assert gains.interaction.mean == pytest.approx(gains.cuts_proposed.mean / gains.cuts_even.mean)
    expected = found.mean_s("splitfed_v1") / found.mean_s("hsfl")
    assert gains.over["splitfed_v1"].mean == pytest.approx(expected)


def test_known_cuts_are_not_searched_again(answer, trace: Trace, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    kept = read_cuts(write_cuts(tmp_path / "cuts.csv", [answer]))
    point = make_point("digits", "smoke", SEED, FLEET, trace.num_samples, GAINS)
    known_gap, cuts = kept[*point.key, point.settings]
    strange = {name: [1] * 10 for name in cuts}  # taken at their word, so nothing was searched
    assert solve_fleet(point, cost_of(point.config), strange, 0.5).cuts["hsfl"] == [1] * 10
    again = solve_fleet(point, cost_of(point.config), cuts, known_gap)
    assert again.round_s["hsfl"] == answer.round_s["hsfl"]
    assert again.gap == pytest.approx(answer.gap, rel=1e-3)


def test_table_1_takes_the_cuts_that_the_gains_have_searched(answer, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Both files of a folder of results count; where both know a column, Table 1's own file is taken."""
    gains = replace(answer, cuts={"rcls": [2] * 10, "hsfl": [3] * 10})
    write_cuts(tmp_path / GAINS_CUTS_FILE, [gains])
    write_cuts(tmp_path / "cuts-smoke.csv", [replace(answer, cuts={"hsfl": [1] * 10})])
    ((_, cuts),) = shipped_cuts(tmp_path).values()
    assert cuts == {"rcls": [2] * 10, "hsfl": [1] * 10}
    assert shipped_cuts(None) == {}


def test_cuts_of_other_settings_are_not_taken(answer, trace: Trace, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The shipped cuts are of ResNet-18; a scale that trains another model, or other samples, searches its own."""
    point = make_point("digits", "smoke", SEED, FLEET, trace.num_samples, GAINS)
    fewer = make_point("digits", "smoke", SEED, FLEET, [3] * 10, GAINS)
    quick = make_point("digits", "quick", SEED, FLEET, trace.num_samples, GAINS)
    assert len({point.settings, fewer.settings, quick.settings}) == 3
    assert answer.settings == point.settings
    foreign = {(*point.key, quick.settings): (0.0, {name: [9] * 10 for name in GAINS})}
    solve_points([point], tmp_path, foreign, quietly)
    assert max(read_answer(tmp_path, point).cuts["hsfl"]) < 9


@pytest.mark.parametrize("data", DATASETS)
def test_the_shipped_cuts_and_traces_are_of_todays_settings(data: str) -> None:
    """Else `hsfl reproduce` would search and train them again, for hours."""
    trace = read_trace(RESULTS / trace_file_name(data, "twins", "quick", SEED))
    assert trace_fits(trace, trace_config(data, "quick", SEED, "twins"))
    point = make_point(data, "quick", SEED, FLEET, trace.num_samples, SEVEN)
    assert set(SEVEN) <= set(shipped_cuts(RESULTS)[*point.key, point.settings][1])


def test_max_cut_from_memory() -> None:
    """Memory for batches of 256; more of it never means a smaller max_cut."""
    point = make_point("mnist", "quick", SEED, 3, [500] * 10, ("splitfed_v1",), "memory")
    found = solve_fleet(point, cost_of(point.config))
    cost = cost_of(point.config)
    assert point.config.fleet.storage_bits == (4e8, 2.4e9)
    assert all(cost.memory_bits[cut] <= 2.4e9 for cut in found.max_cut)
    assert len(set(found.max_cut)) > 2
    assert set(found.cuts["splitfed_v1"]) == {min(found.max_cut)}


def test_a_column_with_tau_goes_on_from_the_twins(
    out: Path, trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FL drops clients; from the first drop on it is trained itself, and the whole is what a run from the start gives."""
    monkeypatch.setattr(tau_row, "COLUMNS_WITH_TAU", ("splitfed_v1", "hsfl", "fl"))
    config = with_changes(trace_config("digits", "smoke", SEED, "twins"), ["log.model_every=1", "train.rounds=4"])
    twins = out / "runs" / "digits" / "twins" / "seed-1"
    if not (twins / "models").exists():
        train_run(config, tmp_path / "again")
        (tmp_path / "again" / "models").rename(twins / "models")
    rows = {row.column: row for row in tau_row.reproduce_tau_row(ask(out), [SEED], "digits")}
    assert tau_row.read_tau_rows(out / "tau-smoke.csv") == {("digits", SEED, name): row for name, row in rows.items()}
    assert rows["splitfed_v1"].tau_s == rows["fl"].tau_s > 0
    point = make_point("digits", "smoke", SEED, SEED, trace.num_samples, tau_row.COLUMNS_WITH_TAU)
    clocks = read_answer(out / "fleets", point)
    tight_s = 1.02 * float(
        np.median(clocks.round_s["splitfed_v1"])
    )  # so that some round has a straggler, but not the first
    config = tau_row._config(ask(out), "splitfed_v1", trace, clocks, tight_s, 1e9)
    lines, _ = tau_row._clocked(config, "splitfed_v1", clocks)
    first = next((i for i, line in enumerate(lines) if not line.kept.all()), None)
    if first:  # a fork in the middle
        tau_row.fork(config, tmp_path / "forked", trace, first, out)
        train_run(config, tmp_path / "forked", resume=True)
    train_run(config, tmp_path / "whole")
    whole = RunFolder(tmp_path / "whole").rounds()
    assert [r.kept for r in whole] == [np.flatnonzero(line.kept).tolist() for line in lines]
    if first:
        forked = RunFolder(tmp_path / "forked").rounds()
        assert [(r.kept, r.round_s) for r in forked] == [(r.kept, r.round_s) for r in whole]
        assert [r.train_loss for r in forked] == pytest.approx([r.train_loss for r in whole], rel=1e-3)


def test_a_row_with_tau_pays_for_the_estimation_of_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody is dropped, rounds take what the other columns' rounds take. Where clients are dropped, they take what a run takes, forked
    from the twins or not. A test after round 3, which a run makes when its budget ends there, is no test of the row."""
    words = ("model.norm=batch", "train.norm_statistics=estimated", "train.norm_batches=1", "train.eval_every=2")
    monkeypatch.setitem(SIZES["smoke"], "digits", (*SIZES["smoke"]["digits"], *words))
    twins = with_changes(trace_config("digits", "smoke", SEED, "twins"), ["log.model_every=1"])
    train_run(twins, tmp_path / "runs" / "digits" / "twins" / f"seed-{SEED}")
    trace = get_trace(tmp_path, "twins")
    shared = tau_row.reproduce_tau_row(ask(tmp_path), [SEED], "digits")
    clocks = tau_row._answer(ask(tmp_path), trace)
    for row in shared:
        assert row.first_drop is None
        config = tau_row._config(ask(tmp_path), row.column, trace, clocks, row.tau_s, 1e9)
        assert tau_row._clocked(config, row.column, clocks)[1] == pytest.approx(clocks.round_s[row.column], rel=1e-12)
        assert row.rounds == at_budget(trace, clocks.round_s[row.column], row.budget_s).rounds
    tau_s = 1.1 * float(np.median(clocks.round_s["splitfed_v1"]))  # too short for the third round alone
    config = tau_row._config(ask(tmp_path), "splitfed_v1", trace, clocks, tau_s, 1e9)
    lines, round_s = tau_row._clocked(config, "splitfed_v1", clocks)
    assert [line.kept.all() for line in lines] == [True, True, False, True]
    assert [s > line.round_s for s, line in zip(round_s, lines)] == [False, True, False, True]
    tau_row.fork(config, tmp_path / "forked", trace, 2, tmp_path)
    train_run(config, tmp_path / "forked", resume=True)
    config = with_changes(config, [f"train.budget_s={sum(round_s[:3]) + 0.1 * round_s[3]}"])
    assert tau_row._clocked(config, "splitfed_v1", clocks)[1] == round_s[:3]
    train_run(config, tmp_path / "whole")
    forked, whole = RunFolder(tmp_path / "forked").rounds(), RunFolder(tmp_path / "whole").rounds()
    assert [r.round_s for r in forked] == pytest.approx(round_s, rel=1e-9)
    assert [r.round_s for r in whole[:2]] == pytest.approx(round_s[:2], rel=1e-9)
    assert forked[1].averaged == pytest.approx(whole[1].averaged, rel=1e-3)
    assert whole[2].test_loss is not None
    own = tau_row.OwnTraining(replace(shared[0], rounds=3, accuracy=None), config, tmp_path / "whole", trace, 2)
    assert own.trained().accuracy == whole[1].test_accuracy != whole[2].test_accuracy
