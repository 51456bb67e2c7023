"""Measured links to a main server that is one queue: the plan, the run and the shares agree where they must."""

import json
from pathlib import Path

import numpy as np
import pytest

from hsfl.network.clock import timeline
from hsfl.network.devices import Servers
from hsfl.network.latency import Phases
from hsfl.network.server_queue import queued_round
from hsfl.planning.rounds.measured_queue import serving
from hsfl.planning.world import make_world
from tests.naming import names
from tests.small_runs import hsfl, refused, tiny, tiny_words

pytest.importorskip("numba")
LINKS = (
    "network.kind=measured",
    "network.main_up_bps=[1e6,2e6,4e6]",
    "network.main_down_bps=1e7",
    "network.speed_std=0",
)
QUEUE = (*LINKS, "network.server=queue", "fleet.cpu_hz=[1e8,1e9]")


def plan_of(*settings: str) -> dict:
    return hsfl("plan", *tiny_words("fleet.cuts=planned", "allocation.samples=2", *settings), "--json").json()


@pytest.mark.parametrize("policy", ["proposed", "even", "rcls"])
@pytest.mark.parametrize("service", ["turns", "longest"])
def test_the_plan_is_the_run(policy: str, service: str, tmp_path: Path) -> None:
    settings = (
        *QUEUE,
        "network.main_hz=2e8",
        f"network.service={service}",
        f"allocation.policy={policy}",
        "train.rounds=2",
    )
    words = tiny_words("fleet.cuts=planned", *settings)
    plan = hsfl("plan", *words, "--out", tmp_path / "plan", "--json").json()
    assert hsfl("run", "--plan", tmp_path / "plan" / "plan.json", "--out", tmp_path / "run", "--quiet").code == 0
    records = [json.loads(text) for text in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    for record in records:
        assert record["cuts"] == plan["cuts"]
        assert record["round_s"] == pytest.approx(plan["round_s"], rel=1e-9)
        assert record["allocation"]["status"] == "heuristic"
        assert record["allocation"]["lower_bound_s"] <= record["round_s"] * (1 + 1e-9)
    assert plan["lower_bound_s"] <= plan["round_s"] * (1 + 1e-9)
    for client in plan["clients"]:
        assert client["server_hz"] == 2e8, "each batch has the whole server"
    assert all(next(iter(client["seconds"])) == "model_down" for client in plan["clients"]), "in the order of the round"
    assert max(sum(client["seconds"].values()) for client in plan["clients"]) == pytest.approx(
        plan["round_s"], rel=1e-9
    )


ENDING = (
    *("network.swap_bps=1e7", "network.swap_delay_s=0.02", "network.open_s=0.1", "network.average_s=0.05"),
    *("network.test_s=0.4", "network.checkpoint_s=0.2"),
)


def test_the_end_of_a_round_is_planned_and_run_alike(tmp_path: Path) -> None:
    """Its seconds by hand, in the plan, in its clients' waiting and in every round of the run; none without the settings."""
    words = tiny_words("fleet.cuts=[1,2,4]", *QUEUE, "network.main_hz=2e8", "train.rounds=2", "train.eval_every=2")
    bare, words = (
        hsfl("plan", *words, "--json").json(),
        [*words, *(part for word in ENDING for part in ("--set", word))],
    )
    plan = hsfl("plan", *words, "--out", tmp_path / "plan", "--json").json()
    cost = make_world(tiny(), (1, 8, 8), 10).cost
    swap_s = 0.04 + float(cost.swapped_bits[4] - cost.swapped_bits[1]) / 1e7
    expected = {"open": 0.1, "swap": swap_s, "average": 0.15, "test": 0.2, "checkpoint": 0.2}
    assert plan["ending_s"] == pytest.approx(expected)
    assert bare["ending_s"] == {}
    assert plan["round_s"] == pytest.approx(bare["round_s"] + sum(expected.values()), rel=1e-12)
    assert bare["lower_bound_s"] < plan["lower_bound_s"] <= plan["round_s"]
    assert hsfl("run", *words, "--out", tmp_path / "run", "--quiet").code == 0
    records = [json.loads(text) for text in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert "test" not in records[0]["modelled_ending_s"]
    assert records[1]["modelled_ending_s"] == pytest.approx(expected | {"test": 0.4})
    assert np.mean([record["round_s"] for record in records]) == pytest.approx(plan["round_s"], rel=1e-9)
    for record in records:
        assert record["bytes"]["edge_main"] * 8 / 2 == cost.swapped_bits[4] - cost.swapped_bits[1]
        assert min(record["waiting_s"]) >= sum(record["modelled_ending_s"].values())
        assert record["allocation"]["lower_bound_s"] <= record["round_s"]
        assert "ending_s" not in record


def test_slow_links_between_the_servers_bring_the_cuts_together() -> None:
    cuts = [plan_of(*QUEUE, "network.main_hz=2e8", *more)["cuts"] for more in ((), ("network.swap_bps=1e4",))]
    assert np.ptp(cuts[0]) > np.ptp(cuts[1]) == 0


def test_a_test_beside_the_next_round_occupies_the_server(tmp_path: Path) -> None:
    """In rounds after a tested one; the last round's test is waited for."""
    words = (
        *QUEUE,
        "network.main_hz=2e7",
        "network.test_s=0.4",
        "network.test_beside=4",
        "train.rounds=4",
        "train.eval_every=2",
    )
    assert hsfl("run", *tiny_words(*words), "--out", tmp_path / "run", "--quiet").code == 0
    records = [json.loads(text) for text in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [record.get("modelled_ending_s") for record in records] == [None, None, None, {"test": 0.4}]
    rounds_s = [record["round_s"] for record in records]
    assert rounds_s[0] == rounds_s[1]
    assert rounds_s[0] < rounds_s[2] <= rounds_s[0] + 0.4 + 1e-9
    assert rounds_s[3] == pytest.approx(rounds_s[0] + 0.4)
    one = (*words[:-1], "train.eval_every=1")
    plan, bare = (plan_of(*given, "fleet.cuts=[1,2,4]") for given in (one, one[:-4]))
    assert bare["round_s"] < plan["round_s"] <= bare["round_s"] + 0.4 + 1e-9
    assert plan["ending_s"] == {}


def test_one_client_or_a_fast_server_makes_shares_and_queue_equal() -> None:
    shares = [word for word in QUEUE if not word.startswith("network.server")]
    for more in (("network.main_hz=1e15",), ("fleet.num_clients=1", "network.main_up_bps=1e6", "network.main_hz=2e8")):
        queued, shared = plan_of(*QUEUE, *more), plan_of(*shares, *more)
        assert queued["cuts"] == shared["cuts"]
        assert queued["round_s"] == pytest.approx(shared["round_s"], rel=1e-4)


def test_a_queue_is_never_slower_than_everybody_in_turn_and_shows_who_waits() -> None:
    plan = plan_of(*QUEUE, "network.main_hz=2e7")
    waits_s = [client["seconds"]["waiting"] for client in plan["clients"]]
    assert max(waits_s) > 0
    assert plan["round_s"] <= sum(
        sum(client["seconds"].values()) - client["seconds"]["waiting"] for client in plan["clients"]
    )


def test_the_table_of_a_plan_has_the_waiting() -> None:
    shown = hsfl("plan", *tiny_words("fleet.cuts=planned", "allocation.samples=2", *QUEUE)).out
    names(shown, "waits", "one batch at a time")


def test_compiled_and_plain_serve_alike() -> None:
    assert serving(Servers()) is None
    rng = np.random.default_rng(0)
    times = Phases(*rng.random((8, 5)))
    for order in ("turns", "longest"):
        compiled = serving(Servers(service=order))
        fast = timeline("hsfl", times, np.full(5, 3.5), serve=compiled)
        plain = timeline("hsfl", times, np.full(5, 3.5), serve=lambda work, order=order: queued_round(work, order))
        assert fast.end_s.tobytes() == plain.end_s.tobytes()
        assert fast.round_s == plain.round_s


def test_a_client_dropped_at_tau_has_kept_the_server_busy() -> None:
    """Client 0 needs the server for 2 s a batch and is dropped; client 1 has waited for it all the same."""
    zero = np.zeros(2)
    times = Phases(np.array([0.0, 0.1]), zero, np.array([2.0, 0.5]), zero, zero, np.array([5.0, 0.0]), zero, zero)
    alone = timeline("hsfl", times, np.ones(2), tau_s=6.0)
    queued = timeline("hsfl", times, np.ones(2), tau_s=6.0, serve=serving(Servers(service="turns")))
    assert queued.kept.tolist() == alone.kept.tolist() == [False, True]
    assert (alone.finish_s[1], queued.finish_s[1]) == pytest.approx((0.6, 2.5))
    assert queued.waiting_s[1] == pytest.approx(6.0 - 0.6)


def test_frameworks_that_divide_no_server_keep_their_timelines() -> None:
    times = Phases(*np.random.default_rng(1).random((8, 4)))
    for framework in ("sl", "splitfed_v2", "fsl"):
        plain = timeline(framework, times, np.full(4, 2.0))
        assert (
            timeline(framework, times, np.full(4, 2.0), serve=serving(Servers(service="turns"))).end_s.tobytes()
            == plain.end_s.tobytes()
        )


def test_what_a_queue_does_not_fit_is_refused() -> None:
    names(refused("plan", *tiny_words("network.server=queue")), "network.server", "network.kind=measured")
    names(
        refused("run", *tiny_words(*LINKS, "network.server=shares", "network.service=longest")),
        "network.service",
        "network.server=auto or queue",
    )
    names(refused("run", *tiny_words(*QUEUE, "framework=sl")), "network.server", "sl")
    shares = tiny_words(*LINKS, "network.server=shares", "network.test_s=1")
    names(refused("run", *shares), "network.test_s", "network.server=auto or queue")
    names(refused("run", *tiny_words("network.test_s=1")), "network.test_s", "network.kind=measured")
