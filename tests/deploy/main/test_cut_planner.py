"""Cuts from measurement: a slow device gets a shallow cut, noise moves nobody, and a device that slowed gets another cut."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hsfl.config import parse_config
from hsfl.deploy.logs import open_log
from hsfl.deploy.main.cut_planner import CutPlanner, RoundPlan
from hsfl.deploy.wire.client_messages import OwnSpeeds, Ready
from hsfl.errors import InputError
from hsfl.models.cost_table import CostTable, measure_cost
from tests.deploy.fleet import RUN, changed
from tests.deploy.kits import small_kit
from tests.naming import raises

NAMES = ["ada", "bo", "cy", "di"]
FAST, SLOW = 1e10, 2e7  # FLOP/s
EVERYBODY = (0, 1, 2, 3)


def cost() -> CostTable:
    return measure_cost(small_kit().model, (1, 8, 8), 8, optimizer_states=2)


def ready(flops_per_s: float, bps: float = 1e11, memory_bits: float | None = None) -> Ready:
    return Ready("f", [3] * 10, OwnSpeeds(flops_per_s, bps, bps, bps, bps, memory_bits), None)


def planner(log: io.StringIO | None = None, link: dict[str, object] | None = None, **fleet: object) -> CutPlanner:
    config = parse_config(changed(RUN, fleet={"cuts": "fastest"} | fleet, link=link or {}))
    return CutPlanner(config, cost(), 2e8, open_log("test", True, log or io.StringIO()))


def phases(client_s: float) -> dict[str, float]:
    names = ("smashed", "server", "waiting", "gradient", "model_up", "model_down")
    return dict.fromkeys(names, 0.0) | {"client": client_s}


NOTHING = {"up": 0, "down": 0, "head_up": 0, "head_down": 0}


def test_a_slow_device_gets_a_shallower_cut() -> None:
    cuts = {}
    for last in (FAST, SLOW):
        made = planner()
        for seat, flops_per_s in enumerate((FAST, FAST, FAST, last)):
            made.join(seat, ready(flops_per_s))
        cuts[last] = made.plan(0, EVERYBODY, NAMES).cuts[3]
    assert cuts[SLOW] < cuts[FAST]


@pytest.mark.parametrize("service", ["turns", "longest"])
def test_a_main_server_that_is_one_queue_is_planned_as_one(service: str) -> None:
    """Nothing is divided, and everybody has the whole server in turn."""
    run = changed(RUN, fleet={"cuts": "fastest"}, network={"server": "queue", "service": service})
    made = CutPlanner(parse_config(run), cost(), 2e8, open_log("test", True, io.StringIO()))
    for seat in EVERYBODY:
        made.join(seat, ready(FAST))
    plan = made.plan(0, EVERYBODY, NAMES)
    assert plan.allocation_note["server_hz"] == [2e8] * 4
    assert {plan.weight(seat) for seat in EVERYBODY} == {2e8}


def test_given_cuts_are_kept_and_frameworks_with_one_cut_have_one() -> None:
    made = planner(cuts=[1, 2, 3, 5])
    for seat in EVERYBODY:
        made.join(seat, ready(SLOW))
    assert made.plan(0, EVERYBODY, NAMES).cuts == (1, 2, 3, 5)
    for framework, wanted in (("splitfed_v1", (1,) * 4), ("fl", (5,) * 4)):
        config = parse_config(changed(RUN) | {"framework": framework})
        one = CutPlanner(config, cost(), 1e9, open_log("test", True, io.StringIO()))
        for seat in EVERYBODY:
            one.join(seat, ready(FAST))
        assert one.plan(0, EVERYBODY, NAMES).cuts == wanted


@pytest.mark.parametrize("holds", [5, 3])
def test_a_cut_of_the_operator_stands_though_it_costs_seconds(holds: int) -> None:
    """From the first plan that knows it, for as long as it stands, and as far as the device's memory holds it."""
    made = planner(min_cut=1)
    need = made.cost.memory_bits
    assert need is not None
    for seat, flops_per_s in enumerate((FAST, FAST, FAST, SLOW)):
        made.join(seat, ready(flops_per_s, memory_bits=float(need[: holds + 1].max())))
    assert made.plan(0, EVERYBODY, NAMES).cuts[3] < holds
    made.given_cuts = {3: 5}
    assert [made.plan(round, EVERYBODY, NAMES).cuts[3] for round in (1, 2)] == [holds, holds]


def test_noise_moves_nobody_and_a_slowed_device_is_moved_with_a_line() -> None:
    log = io.StringIO()
    made = planner(log)
    for seat in EVERYBODY:
        made.join(seat, ready(FAST))
    first = made.plan(0, EVERYBODY, NAMES).cuts
    rng = np.random.default_rng(0)
    work = 30 * float(made.cost.client_flops[first[0]])
    for round in range(1, 6):
        for seat in EVERYBODY:
            made.learn(0, seat, first[seat], phases(work / FAST * rng.uniform(0.9, 1.1)), NOTHING)
        assert made.plan(round, EVERYBODY, NAMES).cuts == first
    assert log.getvalue() == ""
    for round in range(6, 12):
        made.learn(0, 3, made.cuts[3], phases(30 * float(made.cost.client_flops[made.cuts[3]]) / SLOW), NOTHING)
        later = made.plan(round, EVERYBODY, NAMES).cuts
    assert later[:3] == first[:3]
    assert later[3] < first[3]
    line = json.loads(log.getvalue().splitlines()[0])
    assert line["client"] == "di"
    assert line["before"] == first[3]
    assert line["modelled_round_s"] < 0.9 * line["before_round_s"]


CODED = [{"up": "int8", "down": "int8"}, {"allowed": ["none", "int8"]}]
SLOW_BPS = 1e6


def planned(bps: float, link: dict[str, object], **fleet: object) -> RoundPlan:
    made = planner(link=link, min_cut=1, **fleet)
    for seat in EVERYBODY:
        made.join(seat, ready(FAST, bps))
    return made.plan(0, EVERYBODY, NAMES)


def test_coded_messages_are_charged_as_they_are() -> None:
    """At the cuts of before, on a slow link, smashed data and gradients take a quarter of their seconds, and encoding takes some."""
    plain, coded = (planned(SLOW_BPS, link, cuts=[1, 2, 3, 4]) for link in ({}, CODED[0]))
    assert plain.cuts == coded.cuts
    for phase in ("smashed", "gradient"):
        ratio = coded.timeline.phase_s[phase] / plain.timeline.phase_s[phase]
        assert (ratio > 0.24).all()
        assert (ratio < 0.4).all()  # scales count more where a message is small
    for phase in ("client_forward", "client_backward"):
        assert (coded.timeline.phase_s[phase] > plain.timeline.phase_s[phase]).all()
    heads = planned(SLOW_BPS, {"model": "int8"}, cuts=[1, 2, 3, 4]).timeline.phase_s
    assert (heads["model_up"] < plain.timeline.phase_s["model_up"]).all()
    assert (heads["model_down"] == plain.timeline.phase_s["model_down"]).all()
    assert (plain.codecs, plain.codec(0)) == ((), None)


def test_cut_and_codec_are_chosen_together() -> None:
    """On slow links with int8, on fast ones without, and never a longer round than with either alone."""
    slow, fast = (planned(bps, CODED[1]) for bps in (SLOW_BPS, 1e15))
    coded_cuts = [codec for codec, cut in zip(slow.codecs, slow.cuts) if cut < 5]
    assert set(coded_cuts) <= {"int8"}
    assert set(fast.codecs) == {"none"}
    for bps, plan in ((SLOW_BPS, slow), (1e15, fast)):
        for link in ({}, CODED[0]):
            assert plan.timeline.round_s <= planned(bps, link).timeline.round_s * (1 + 1e-9)


def test_a_codec_that_costs_too_much_is_left_out(tmp_path: Path) -> None:
    points = tmp_path / "points.csv"
    points.write_text("codec,cut,points\n" + "".join(f"int8,{cut},{9 if cut < 3 else 0.1}\n" for cut in range(1, 5)))
    plan = planned(SLOW_BPS, CODED[1] | {"points": str(points), "max_points": 0.5})
    assert all(codec == "none" or cut >= 3 for cut, codec in zip(plan.cuts, plan.codecs))


@pytest.mark.parametrize(
    ("run", "parts"),
    [
        ({"framework": "splitfed_v1", "link": CODED[1]}, ("link.allowed", "splitfed_v1", "one codec")),
        ({"link": {"codecs": ["int8"] * 4}}, ("link.codecs", "fleet.cuts", "fastest")),
        ({"fleet": {"num_clients": 4, "cuts": [1, 2, 3, 4]}, "link": CODED[1]}, ("link.allowed", "fleet.cuts=planned")),
    ],
)
def test_codecs_that_cannot_be_chosen_are_an_error_before_anybody_joins(
    run: dict[str, Any], parts: tuple[str, ...]
) -> None:
    tree = changed(RUN, fleet={"cuts": "fastest"}) | run
    with raises(InputError, *parts):
        CutPlanner(parse_config(tree), cost(), 2e8, open_log("test", True, io.StringIO()))


def test_a_cut_of_the_operator_keeps_the_codec() -> None:
    made = planner(link=CODED[1], min_cut=1)
    for seat in EVERYBODY:
        made.join(seat, ready(FAST, SLOW_BPS))
    made.given_cuts = {3: 2}
    plan = made.plan(0, EVERYBODY, NAMES)
    assert (plan.cuts[3], made.cuts) == (2, plan.cuts)
    assert plan.codec(3) in ("none", "int8")


def test_rates_are_learned_from_the_bytes_that_travelled() -> None:
    """A device whose messages are coded and take the seconds of its link has the rate of its link, and not a quarter of it."""
    made = planner(link=CODED[0], cuts=[2, 2, 2, 2])
    for seat in EVERYBODY:
        made.join(seat, ready(FAST, SLOW_BPS))
    plan = made.plan(0, EVERYBODY, NAMES)
    row, steps = plan.rows[0], 30 / 8
    sent = {
        "up": int(steps * made.row_cost.smashed_bits[row]),
        "down": int(steps * made.row_cost.gradient_bits[row]),
        "head_up": 100,
        "head_down": 200,
    }
    seconds = phases(1.0) | {"smashed": 8 * sent["up"] / SLOW_BPS, "gradient": 8 * sent["down"] / SLOW_BPS}
    seconds |= {"model_up": 800 / SLOW_BPS, "model_down": 1600 / SLOW_BPS}
    made.learn(0, 0, row, seconds, sent)
    for name in ("main_up_bps", "main_down_bps", "edge_up_bps", "edge_down_bps"):
        assert getattr(made.measured[0], name) == pytest.approx(SLOW_BPS, rel=1e-6)


def test_memory_limits_the_cut_and_a_device_that_holds_none_is_refused() -> None:
    made = planner(cuts="max_cut")
    need = made.cost.memory_bits
    assert need is not None
    for seat in EVERYBODY:
        made.join(seat, ready(FAST, memory_bits=float(need.max()) if seat else float(need[:3].max())))
    cuts = made.plan(0, EVERYBODY, NAMES).cuts
    assert cuts[0] < cuts[1] == 5
    with raises(InputError, "feasible cut"):
        made.deepest(1.0)


def test_hysteresis_keeps_no_cut_that_a_device_cannot_hold() -> None:
    """A small device takes a seat that was planned for a large one, or comes back with less memory."""
    log = io.StringIO()
    made = planner(log, min_cut=1)
    need = made.cost.memory_bits
    assert need is not None
    for seat in EVERYBODY:
        made.join(seat, ready(FAST))
    first = made.plan(0, EVERYBODY, NAMES).cuts
    made.join(3, ready(FAST, memory_bits=float(need[1])))
    later = made.plan(1, EVERYBODY, NAMES).cuts
    deepest = made.deepest(float(need[1]))
    assert later[3] <= deepest < first[3]
    line = json.loads(log.getvalue().splitlines()[0])
    assert (line["client"], line["before"], line["cut"]) == ("di", first[3], later[3])
    assert "memory" in line["event"]


def test_a_device_that_cannot_hold_its_given_cut_is_refused_and_stops_nobody_else() -> None:
    made = planner(cuts=[1, 2, 3, 5])
    need = made.cost.memory_bits
    assert need is not None
    made.check_memory("ada", 0, float(need[1]))
    with raises(InputError, "di's memory", "gives it 5", "operator"):
        made.check_memory("di", 3, float(need[1]))


def test_cuts_that_cannot_be_are_an_error_before_anybody_joins() -> None:
    with raises(InputError, "fleet.cuts", "2 numbers", "4 clients"):
        planner(cuts=[1, 2])
    with raises(InputError, "5 units"):
        planner(cuts=[1, 2, 3, 9])


def test_seconds_on_the_link_are_divided_as_the_rates_say() -> None:
    made = planner()
    made.join(0, Ready("f", [3] * 10, OwnSpeeds(FAST, 5e6, 20e6, 1e9, 1e9, None), None))
    assert made.up_share(0, 1000, 1000, 1) == pytest.approx(0.8)
    assert made.up_share(0, 0, 0, 0) == 0.0


def test_an_empty_seat_is_like_the_others() -> None:
    made = planner()
    made.join(0, ready(FAST))
    plan = made.plan(0, (0,), ["ada"])
    assert len(plan.cuts) == 4
    assert plan.weight(0) > 0
