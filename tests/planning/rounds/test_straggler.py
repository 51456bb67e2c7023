"""Why a client holds a round up: the numbers against the clock itself, for every framework."""

from types import SimpleNamespace

import numpy as np
import pytest

from hsfl.config import read_config
from hsfl.formats import si
from hsfl.framework_table import METHODS
from hsfl.models.cost_table import CostTable
from hsfl.network.clock import Why, timeline
from hsfl.network.latency import Phases
from hsfl.planning.rounds.round_clock import Extras, RoundClock
from hsfl.planning.rounds.straggler import explain_straggler, holding_up, longest_phase, work_of
from hsfl.planning.world import world_of
from hsfl.report.page.page_words import plan_sentence, straggler_sentence
from tests.small_runs import PLAIN

COST = CostTable(
    client_forward_flops=[0, 1e6, 4e6, 9e6, 10e6],
    client_backward_flops=[0, 2e6, 8e6, 18e6, 20e6],
    server_forward_flops=[10e6, 9e6, 6e6, 1e6, 0],
    server_backward_flops=[20e6, 18e6, 12e6, 2e6, 0],
    smashed_bits=[8e4, 6e4, 3e4, 1e4, 0],
    gradient_bits=[0, 6e4, 3e4, 1e4, 0],
    model_bits=[0, 1e5, 8e5, 4e6, 9e6],
)
EVERYONE = tuple(range(4))
SMALL = (*PLAIN, "fleet.num_clients=4", "network.num_subchannels=6", "fleet.max_cut=4", "train.batch_size=16")
MEASURED = ("network.kind=measured", "network.main_up_bps=[1e6,5e6,2e7,3e6]", "network.main_down_bps=2e7")
SAMPLES = np.array([100.0, 60.0, 80.0, 120.0])


def clock_of(framework: str, cuts: tuple[int, ...], *changes: str, extras: Extras | None = None) -> RoundClock:
    config = read_config(None, [f"framework={framework}", "seed=3", *SMALL, *changes])
    if framework == "cpsl":
        extras = Extras(clusters=(0, 0, 1, 1))
    return RoundClock(config, world_of(config, COST), cuts, SAMPLES, extras)


ONE_CUT = [
    name for name, row in METHODS.items() if row.source == "hsfl" and not row.own_cuts and row.timing.cut == "any"
]


@pytest.mark.parametrize("links", [(), MEASURED])
@pytest.mark.parametrize("framework", ["hsfl", "fl", *ONE_CUT])
def test_the_numbers_are_those_of_the_clock_and_the_sentence_has_them(framework: str, links: tuple[str, ...]) -> None:
    clock = clock_of(
        framework, (4,) * 4 if framework == "fl" else (3, 1, 2, 4) if framework == "hsfl" else (2,) * 4, *links
    )
    line, _ = clock.round(0, EVERYONE)
    found = explain_straggler(clock, 0, EVERYONE)
    assert found is not None
    assert found.client == line.straggler
    spent = dict.fromkeys(holding_up(clock.job.world), 0.0)
    for name, taken_s in line.phase_s.items():
        phase = name.removesuffix("_forward").removesuffix("_backward")
        if phase in spent:
            spent[phase] += taken_s[found.client]
    assert found.phase == max(spent, key=lambda phase: spent[phase])
    assert found.seconds == pytest.approx(spent[found.phase], rel=1e-5)
    assert found.own_s == pytest.approx(sum(spent.values()), rel=1e-5)
    computes = found.phase in ("client", "server")
    assert found.amount * (1 if computes else 8) == pytest.approx(found.per_second * found.seconds, rel=1e-5)
    assert f"at {si(found.per_second)}{'FLOP/s' if computes else 'bit/s'}" in straggler_sentence(found, "client 0")


@pytest.mark.parametrize("links", [(), MEASURED])
def test_where_all_end_together_it_is_the_client_with_most_work_of_its_own(links: tuple[str, ...]) -> None:
    clock = clock_of("hsfl", (3, 1, 2, 3), *links, "allocation.policy=proposed")
    line, _ = clock.round(0, EVERYONE)
    spent = line.phase_s
    own_s = sum(s for name, s in spent.items() if not name.startswith("server") and name != "model_down")
    found = explain_straggler(clock, 0, EVERYONE)
    assert found is not None
    assert found.client == line.straggler == int(own_s.argmax())


def test_nobody_holds_up_a_round_without_clients() -> None:
    assert explain_straggler(clock_of("cl", (0,) * 4), 0, EVERYONE) is None
    assert explain_straggler(clock_of("hsfl", (2,) * 4), 0, ()) is None


@pytest.mark.parametrize("policy", ["even", "proposed"])
def test_clients_that_are_away_hold_nobody_up(policy: str) -> None:
    found = explain_straggler(clock_of("hsfl", (3, 1, 2, 3), f"allocation.policy={policy}"), 0, (0, 2))
    assert found is not None
    assert found.client in (0, 2)


def test_who_is_dropped_counts_whole() -> None:
    slow = clock_of("hsfl", (2,) * 4)
    first = explain_straggler(slow, 0, EVERYONE)
    assert first is not None
    found = explain_straggler(clock_of("hsfl", (2,) * 4, f"train.tau_s={0.9 * first.own_s}"), 0, EVERYONE)
    assert found is not None
    assert found.own_s == pytest.approx(first.own_s)


def test_all_end_together() -> None:
    found = explain_straggler(clock_of("hsfl", (2,) * 4, *MEASURED, "allocation.policy=proposed"), 0, EVERYONE)
    assert found is not None
    assert found.client == 0  # the slowest link


@pytest.mark.parametrize("seed", range(20))
def test_cpsl_s_straggler_is_who_ends_last(seed: int) -> None:
    """It was the client with the most work, and the chart showed another's bar ending last."""
    rng = np.random.default_rng(seed)
    phases = Phases(*rng.uniform(0.1, 1, (8, 6)))
    line = timeline("cpsl", phases, rng.uniform(1, 4, 6), clusters=rng.permutation([0, 0, 0, 1, 1, 1]))
    assert line.straggler == int(line.finish_s.argmax())


def test_a_download_holds_its_client_up_where_the_server_is_a_queue() -> None:
    slow_download = ("network.edge_down_bps=[1e9,1e9,1e4,1e9]", "network.edge_up_bps=1e9")
    found = explain_straggler(
        clock_of("hsfl", (2,) * 4, *MEASURED, *slow_download, "network.server=queue"), 0, EVERYONE
    )
    assert found is not None
    assert (found.client, found.phase) == (2, "model_down")
    assert found.seconds == pytest.approx(8e5 / 1e4)
    assert found.amount == pytest.approx(8e5 / 8)
    assert found.own_s > found.seconds
    assert "receiving its model" in straggler_sentence(found, "client 2")
    shares = explain_straggler(
        clock_of("hsfl", (2,) * 4, *MEASURED, *slow_download, "network.server=shares"), 0, EVERYONE
    )
    assert shares is not None
    assert shares.phase != "model_down"  # all wait for the last head there


def test_the_longest_phase_of_a_plan() -> None:
    seconds = {"client": 1.0, "smashed": 5.0, "server": 2.0, "gradient": 3.0, "model_up": 0.5}
    held = longest_phase(3, seconds, work_of(COST, 2, 100.0), seconds)
    assert (held.client, held.phase, held.seconds, held.own_s) == (3, "smashed", 5.0, 11.5)
    assert held.amount == 100 * 3e4 / 8
    assert held.per_second == 100 * 3e4 / 5
    plan = SimpleNamespace(
        why=held,
        clients=[
            SimpleNamespace(
                client=3, name="ward-1", codec=None, cut=2, weight=0.7, seconds={"client": 9.0, "model_down": 1.0}
            )
        ],
        crowd=None,
        round_s=12.0,
        other_cut=None,
    )
    alone = plan_sentence(plan)
    assert alone is not None
    assert all(
        words in alone for words in ("ward-1 (cut 2)", "smashed data: 5 s of its 11.5 s", "375 kB at 600 kbit/s")
    )
    beside = plan_sentence(SimpleNamespace(**vars(plan) | {"other_cut": 4, "other_round_s": 9.0}))
    assert beside == f"{alone} With its best other cut, 4, the mean round would take 9 s instead of 12 s."
    assert plan_sentence(SimpleNamespace(why=None)) is None


def test_no_client_of_a_plan_is_named_where_all_end_together_and_no_weight_tells_them_apart() -> None:
    held = Why(0, "client", 9.0, 9.0, 1.0, 1.0)

    def plan(*ends_s: float, weight: float | None = None, crowd: object = None) -> SimpleNamespace:
        clients = [
            SimpleNamespace(
                client=k,
                codec=None,
                name=f"client {k}",
                cut=1,
                weight=weight,
                seconds={"client": s, "model_up": 0.0, "model_down": k},
            )
            for k, s in enumerate(ends_s)
        ]
        return SimpleNamespace(why=held, clients=clients, crowd=crowd, round_s=12.0, other_cut=None)

    assert plan_sentence(plan(9.0, 9.000001)) is None
    assert "client 0" in str(plan_sentence(plan(9.0, 8.0)))
    assert "client 0" in str(
        plan_sentence(plan(9.0, 9.0, weight=0.5))
    )  # who has weight holds the round, whoever ends with it
    assert "client 0" in str(plan_sentence(plan(9.0)))
    assert plan_sentence(plan(crowd=SimpleNamespace(finish_s=[9.0] * 7))) is None
    assert "client 0" in str(plan_sentence(plan(crowd=SimpleNamespace(finish_s=[8.0, *[9.0] * 6]))))
