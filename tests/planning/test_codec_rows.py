"""Rows that are cuts with codecs: the search finds the best of them and its bound holds for all, over a radio, with shares and with a queue."""

import dataclasses
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import hsfl
from hsfl.allocation.cuts.search import best_single_cut, search_cuts, single_cuts
from hsfl.codec_table import allowed_links, link_choices
from hsfl.config import RunConfig, read_config
from hsfl.errors import InputError
from hsfl.models.cost_table import CostTable
from hsfl.network.round_end import RoundEnd
from hsfl.planning.coded_cost import coded_cost, rows_within_points
from hsfl.planning.cuts import choose_cuts
from hsfl.planning.policy_cuts import cut_request
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.world import world_of
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import names, raises
from tests.small_runs import hsfl as command
from tests.small_runs import tiny

ALLOWED = "link.allowed=none,int8,topk:0.1/int8"
BASE = (ALLOWED, "fleet.cuts=planned", "allocation.policy=proposed", "allocation.samples=2", "fleet.num_clients=3")
SLOW_CODERS = (
    "fleet.cpu_hz=[5e6, 5e8]",
    "network.num_subchannels=3",
)  # so that a codec may take longer than what it saves
MEASURED = ("network.kind=measured", "network.main_up_bps=[1e6,3e7,1e8]", "network.main_down_bps=[2e6,3e7,1e8]")
KINDS = {
    "exclusive": SLOW_CODERS,
    "bandwidth": (*SLOW_CODERS, "allocation.sharing=bandwidth"),
    "shares": (*MEASURED, "network.server=shares", "fleet.cpu_hz=[5e6, 5e8]", "network.speed_std=0.2"),
    "queue": (*MEASURED, "network.server=queue", "fleet.cpu_hz=[5e6, 5e8]", "network.speed_std=0.2"),
}
SMALL = ("--set", "model.name=cnn", "--set", "data.image_size=8", "--set", "train.batch_size=8")
POINTS = "codec,cut,points,n\nint8,1,0.1,5\nint8,2,0.5,5\ntopk/int8,1,0.2,5\n"


@pytest.fixture(scope="module")
def cost() -> CostTable:
    return hsfl.cost("cnn", (1, 8, 8), 10, 8)


@pytest.fixture
def points(tmp_path: Path) -> str:
    (tmp_path / "points.csv").write_text(POINTS)
    return str(tmp_path / "points.csv")


def settings(*words: str) -> RunConfig:
    return read_config(None, ["train.batch_size=8", "fleet.max_cut=[2,3,2]", *BASE, *words])


def task_of(config: RunConfig, cost: CostTable) -> CutTask:
    return CutTask(config, world_of(config, cost), np.array([2.0, 5.0, 3.5]))


@pytest.mark.parametrize("limit", [False, True], ids=["all", "max_points"])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "bandwidth")) for kind in KINDS]
)
def test_the_search_finds_the_best_rows_and_its_bound_holds_for_all(
    kind: str, limit: bool, cost: CostTable, points: str
) -> None:
    words = [f"link.points={points}", "link.max_points=0.2"] if limit else []
    task = task_of(settings(*KINDS[kind], *words), cost)
    request = cut_request(task)
    legal = [np.flatnonzero(row) for row in task.rows]
    assert [len(rows) for rows in legal] == ([4, 5, 4] if limit else [6, 9, 6])
    candidates = np.array(list(product(*legal)))
    assert request.rounds is not None
    means_s = request.rounds.mean_s(candidates)
    choice = search_cuts(request)
    if kind != "queue" and len(singles := single_cuts(task.rows)):
        assert choice.mean_s <= request.rounds.mean_s(singles).min() * (1 + 1e-3)
    assert task.rows[np.arange(3), choice.cuts].all()
    assert choice.lower_bound_s <= means_s.min() * (1 + 1e-9)
    assert choice.mean_s <= means_s.min() * (1.01 if kind in ("exclusive", "bandwidth") else 1 + 1e-9)
    one_codec = [means_s[(task.world.cost.blocks_of(candidates) == block).all(axis=1)].min() for block in range(3)]
    if not limit:
        assert choice.mean_s <= min(one_codec) * 1.01


@pytest.mark.parametrize("kind", ["exclusive", "shares", "queue"])
def test_clients_may_have_no_row_in_common(kind: str, cost: CostTable) -> None:
    task = task_of(settings(*KINDS[kind]), cost)
    request = cut_request(task)
    rows = np.zeros_like(request.rows)
    rows[0, [1, 7]], rows[1, [2, 8]], rows[2, [13, 14]] = True, True, True
    found = search_cuts(dataclasses.replace(request, rows=rows, start=None))
    assert rows[np.arange(3), found.cuts].all()
    with raises(InputError, "legal for all clients"):
        best_single_cut(dataclasses.replace(request, rows=rows))


def test_a_mix_of_codecs_can_be_best(cost: CostTable) -> None:
    """A client with a slow link gains by a codec, and one with a slow processor loses by it."""
    words = ("fleet.min_cut=1", "fleet.max_cut=1", "fleet.cpu_hz=[1e6, 1e6]", "fleet.heterogeneity=0")
    rates = (
        "network.kind=measured",
        "network.server=shares",
        "network.main_up_bps=[1e5,1e12,1e12]",
        "network.main_down_bps=1e12",
    )
    task = task_of(settings("link.allowed=none,int8", *words, *rates, "network.speed_std=0"), cost)
    chosen, _ = choose_cuts(task)
    assert task.world.codecs_of(np.array(chosen))[0] == "int8"
    task = task_of(
        settings(
            "link.allowed=none,int8", *words, "network.main_up_bps=1e12", *rates[:2], *rates[3:], "network.speed_std=0"
        ),
        cost,
    )
    assert set(task.world.codecs_of(np.array(choose_cuts(task)[0]))) == {"none"}


def test_each_block_is_the_table_of_its_codec(cost: CostTable) -> None:
    world = task_of(settings("link.model=float16"), cost).world
    size = cost.num_units + 1
    assert (world.cost.num_units, world.codecs) == (cost.num_units, ("none", "int8", "topk:0.1/int8"))
    for block, (up, down) in enumerate((("none", "none"), ("int8", "int8"), ("topk:0.1", "int8"))):
        alone = read_config(None, [f"link.up={up}", f"link.down={down}", "link.model=float16"])
        table = coded_cost(cost, link_choices(alone.link), 8)
        for name in ("client_flops", "server_flops", "smashed_bits", "gradient_bits", "model_bits", "down_bits"):
            np.testing.assert_array_equal(getattr(world.cost, name)[block * size :][:size], getattr(table, name))
    np.testing.assert_array_equal(world.cost.swapped_bits[size : 2 * size], cost.swapped_bits)
    rows = np.array([1, size + 2, 3 * size - 1])
    assert (world.cost.cuts_of(rows).tolist(), world.codecs_of(rows)) == ([1, 2, 5], ("none", "int8", "none"))
    np.testing.assert_array_equal(world.rows_of([1, 2, 5], world.codecs_of(rows)), [1, size + 2, 5])
    end = RoundEnd(swap_bps=1e6)
    assert end.swap_s(world.cost, np.array([1, size + 2, 5])) == end.swap_s(cost, np.array([1, 2, 5])) > 0


def test_fastest_cuts_choose_codecs_too(cost: CostTable) -> None:
    task = task_of(settings("fleet.cuts=fastest", *KINDS["shares"]), cost)
    chosen = np.array(choose_cuts(task)[0])
    assert task.rows[np.arange(3), chosen].all()
    uncoded = task_of(settings("fleet.cuts=fastest", "link.allowed=none", *KINDS["shares"]), cost)
    even_s = cut_request(task).rounds.even_round_s  # type: ignore[union-attr]
    assert even_s(chosen).mean() <= even_s(np.array(choose_cuts(uncoded)[0])).mean()


def test_allocation_knows_no_codecs() -> None:
    files = (Path(hsfl.__file__).parent / "allocation").rglob("*.py")
    assert not [file.name for file in files if "codec" in file.read_text()]


# --- points of accuracy


def test_points_take_rows_away(cost: CostTable, points: str) -> None:
    def legal(*words: str) -> list[int] | None:
        rows = rows_within_points(settings(*words).link, cost)
        return None if rows is None else np.flatnonzero(rows).tolist()

    assert legal() is None
    uncoded = [*range(6), 11, 17]  # the last cut sends nothing
    assert legal("link.max_points=99") == uncoded  # nothing is measured
    assert legal(f"link.points={points}", "link.max_points=0.1") == sorted([*uncoded, 7])
    assert legal(f"link.points={points}", "link.max_points=0.5") == sorted([*uncoded, 7, 8, 13])
    task = task_of(settings("link.allowed=int8", f"link.points={points}", "link.max_points=0.05"), cost)
    with raises(InputError, "link.max_points", "client 0", "link.allowed"):
        _ = task.rows


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("codec,cut,points\nint8,1\n", ("line 2", "points ''")),
        ("codec,cut,points\nint9,1,1\n", ("line 2", "int9", "int8")),
        ("codec,cut,points\nint8,-1,1\n", ("line 2", "'-1'")),
        ("codec,cut,points\nint8,1,nan\n", ("line 2", "'nan'")),
        ("codec,cut,points\nint8,1,1\nint8/int8,1,2\n", ("line 3", "twice")),
    ],
)
def test_bad_points(text: str, parts: tuple[str, ...], cost: CostTable, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with raises(InputError, "link.points", *parts):
        rows_within_points(settings(f"link.points={tmp_path / 'bad.csv'}", "link.max_points=1").link, cost)


def test_missing_points(cost: CostTable) -> None:
    with raises(InputError, "link.points=nowhere.csv", "codec, cut, points"):
        rows_within_points(settings("link.points=nowhere.csv", "link.max_points=1").link, cost)


# --- settings


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["link.allowed=int8,int8/int8"], ("link.allowed", "twice")),
        (["link.allowed=int8", "link.up=int8"], ("link.allowed", "link.up=int8", "leave one")),
        (["link.allowed=none,int8", "link.codecs=int8"], ("link.allowed", "link.codecs")),
        (["link.allowed=none,inty"], ("link.allowed", "inty", "int8")),
        (["link.allowed=none,int8/topk:2"], ("link.allowed", "topk:2", "0.1..1")),
    ],
)
def test_bad_codecs(words: list[str], parts: tuple[str, ...]) -> None:
    with raises(InputError, *parts):
        allowed_links(read_config(None, words).link)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["framework=splitfed_v1"], ("link.allowed", "splitfed_v1")),
        (["framework=sl"], ("link.allowed", "sl")),
        (["fleet.cuts=2"], ("link.allowed", "fleet.cuts", "planned")),
        (["fleet.cuts=max_cut"], ("link.allowed", "fleet.cuts")),
        (["network.cells=2", "fleet.max_cut=3"], ("link.allowed", "several cells")),
        (["link.allowed=none", "link.codecs=int8,int8,none"], ("link.codecs", "fleet.cuts", "'planned'")),
        (["link.allowed=none", "link.codecs=int8,none", "fleet.cuts=2"], ("link.codecs", "2 entries", "3 clients")),
        (["link.allowed=none", "link.codecs=int8,none,none", "fleet.cuts=2", "framework=psl"], ("link.codecs", "psl")),
    ],
)
def test_codecs_that_nobody_chooses_are_refused(words: list[str], parts: tuple[str, ...], cost: CostTable) -> None:
    with raises(InputError, *parts):
        choose_cuts(task_of(settings(*words), cost))


def test_one_codec_is_everybodys_in_every_framework(cost: CostTable) -> None:
    one = task_of(settings("link.allowed=int8", "framework=sl", "fleet.cuts=auto"), cost).world
    both = task_of(
        settings("link.allowed=none", "link.up=int8", "link.down=int8", "framework=sl", "fleet.cuts=auto"), cost
    ).world
    np.testing.assert_array_equal(one.cost.smashed_bits, both.cost.smashed_bits)
    np.testing.assert_array_equal(one.cost.client_flops, both.cost.client_flops)


# --- plans


def test_a_plan_has_a_codec_for_each_client_and_a_run_takes_it(points: str, tmp_path: Path) -> None:
    words = (*BASE, "link.allowed=none,int8", f"link.points={points}", "link.max_points=0.2", "allocation.samples=1")
    plan = hsfl.plan(tiny(*words), out=tmp_path / "plan")
    assert plan.codecs is not None
    assert [client.codec for client in plan.clients] == plan.codecs
    assert all(cut in (1, 5) for cut, codec in zip(plan.cuts, plan.codecs) if codec == "int8")
    assert "int8" in plan.codecs
    names(next(note for note in plan.notes if "link.allowed" in note), "int8 at cut 1 0.1", "up to 0.2", points)
    unmeasured = hsfl.plan(tiny(*BASE, "allocation.samples=1"))
    assert any("not measured" in note for note in unmeasured.notes)
    assert unmeasured.round_s <= plan.round_s * (1 + 1e-6)
    done = command("run", "--plan", tmp_path / "plan", "--set", "train.rounds=1", "--out", tmp_path / "run", "--quiet")
    assert done.code == 0, done.err
    folder = RunFolder(tmp_path / "run")
    (record,) = folder.rounds()
    assert (record.cuts, record.codecs) == (plan.cuts, plan.codecs)
    assert folder.config().link.codecs == tuple(plan.codecs)
    record_of_cuts = folder.cuts()
    assert record_of_cuts is not None
    assert record_of_cuts.codecs == plan.codecs
    page = (tmp_path / "plan" / "report.html").read_text()
    assert '"codec": "int8"' in page or '"codec":"int8"' in page


def test_people_see_codecs_beside_cuts() -> None:
    shown = command("plan", *(word for change in (*BASE, "allocation.samples=1") for word in ("--set", change)), *SMALL)
    assert shown.code == 0, shown.err
    names(shown.out, "topk:0.1/int8", "link.allowed")
