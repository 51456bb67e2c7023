"""Why a client holds a round up: the numbers against the clock itself, for every framework."""

from dataclasses import replace

import numpy as np
import pytest

from hsfl.config import read_config
from hsfl.fleet.quantities import say
from hsfl.methods import METHODS
from hsfl.models.cost import CostTable
from hsfl.network.clock import timeline
from hsfl.network.latency import Phases
from hsfl.planning import straggler
from hsfl.planning.round_clock import Extras, RoundClock
from hsfl.planning.straggler import Held, other_cut_words, why
from hsfl.planning.world import world_of

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
SMALL = ("fleet.num_clients=4", "network.num_subchannels=6", "fleet.max_cut=4", "train.batch_size=16")
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
def test_the_sentence_s_numbers_are_those_of_the_clock(framework: str, links: tuple[str, ...]) -> None:
    clock = clock_of(
        framework, (4,) * 4 if framework == "fl" else (3, 1, 2, 4) if framework == "hsfl" else (2,) * 4, *links
    )
    line, _ = clock.round(0, EVERYONE)
    found = why(clock, 0, EVERYONE)
    assert found is not None
    assert found.client == line.straggler
    spent = line.phase_s
    assert found.seconds == pytest.approx(sum(spent[part][found.client] for part in straggler.GROUPS[found.phase]))
    own_s = sum(spent[part][found.client] for parts in straggler.GROUPS.values() for part in parts)
    assert found.own_s == pytest.approx(own_s)
    bits = 8 if found.phase not in ("client", "server") else 1
    assert found.amount * bits == pytest.approx(found.per_second * found.seconds)
    assert (found.gain is None) == (bool(links) or bits == 1)
    assert found.words.startswith(f"Client {found.client} (cut ")
    assert say(found.per_second, "FLOP/s" if bits == 1 else "bit/s") in found.words


@pytest.mark.parametrize("links", [(), MEASURED])
def test_where_all_end_together_record_and_sentence_name_the_same_client(links: tuple[str, ...]) -> None:
    clock = clock_of("hsfl", (3, 1, 2, 3), *links, "allocation.policy=proposed")
    line, _ = clock.round(0, EVERYONE)
    spent = line.phase_s
    own_s = sum(s for name, s in spent.items() if not name.startswith("server") and name != "model_down")
    found = why(clock, 0, EVERYONE)
    assert found is not None
    assert "ends with all others" in found.words
    assert found.client == line.straggler == int(own_s.argmax())


@pytest.mark.parametrize("policy", ["even", "proposed", "scls+ecfa"])
@pytest.mark.parametrize("links", [(), MEASURED])
def test_the_best_other_cut_is_the_best_of_clocks_with_other_cuts(policy: str, links: tuple[str, ...]) -> None:
    cuts, changes = (3, 1, 2, 3), (*links, f"allocation.policy={policy}")
    found = why(clock_of("hsfl", cuts, *changes), 0, EVERYONE)
    assert found is not None
    rounds = {}
    for cut in range(1, 5):
        changed = tuple(cut if k == found.client else own for k, own in enumerate(cuts))
        if changed != cuts:
            rounds[cut] = clock_of("hsfl", changed, *changes).round(0, EVERYONE)[0].round_s
    best = min(rounds, key=lambda cut: rounds[cut])
    assert found.other_cut == best
    assert found.other_round_s == pytest.approx(rounds[best], rel=1e-9)


@pytest.mark.parametrize("framework", ["splitfed_v1", "psl", "cpsl", "sl"])
def test_where_all_have_one_cut_the_other_cut_is_for_all(framework: str) -> None:
    found = why(clock_of(framework, (2,) * 4), 0, EVERYONE)
    assert found is not None
    rounds = {cut: clock_of(framework, (cut,) * 4).round(0, EVERYONE)[0].round_s for cut in (1, 3, 4)}
    assert found.other_cut == min(rounds, key=lambda cut: rounds[cut])
    assert found.other_round_s == pytest.approx(min(rounds.values()))
    assert "for all" in found.words


def test_what_was_given_stays_where_allocating_anew_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the even allocation both ways must agree: it gives the same at every cut."""
    clock = clock_of("hsfl", (3, 1, 2, 3))
    dealt = clock.dealt(0, EVERYONE)
    k = np.arange(4) == 2
    anew = straggler._at_cut(clock, dealt, k, 1)
    monkeypatch.setattr(straggler, "_anew", lambda clock, dealt: False)
    held = straggler._at_cut(clock, dealt, k, 1)
    for name in Phases.__dataclass_fields__:
        np.testing.assert_allclose(getattr(held.allotted.phases, name), getattr(anew.allotted.phases, name), rtol=1e-12)
    whole = clock_of("hsfl", (4, 1, 2, 3))  # cut 4 was given no rate and no cycles that other cuts could use
    share = straggler._at_cut(whole, whole.dealt(0, EVERYONE), np.arange(4) == 0, 1)
    assert np.isinf(share.allotted.phases.smashed_s[0])


def test_nobody_holds_up_a_round_without_clients() -> None:
    assert why(clock_of("cl", (0,) * 4), 0, EVERYONE) is None
    assert why(clock_of("hsfl", (2,) * 4), 0, ()) is None


@pytest.mark.parametrize("policy", ["even", "proposed"])
def test_clients_that_are_away_hold_nobody_up(policy: str) -> None:
    cuts, changes = (3, 1, 2, 3), f"allocation.policy={policy}"
    found = why(clock_of("hsfl", cuts, changes), 0, (0, 2))
    assert found is not None
    assert found.client in (0, 2)
    others = [tuple(cut if k == found.client else own for k, own in enumerate(cuts)) for cut in range(1, 5)]
    rounds = [clock_of("hsfl", other, changes).round(0, (0, 2))[0].round_s for other in others if other != cuts]
    assert found.other_round_s == pytest.approx(min(rounds))


def test_who_is_dropped_counts_whole() -> None:
    slow = clock_of("hsfl", (2,) * 4)
    first = why(slow, 0, EVERYONE)
    assert first is not None
    found = why(clock_of("hsfl", (2,) * 4, f"train.tau_s={0.9 * first.own_s}"), 0, EVERYONE)
    assert found is not None
    assert found.own_s == pytest.approx(first.own_s)
    assert "is dropped at tau" in found.words


def test_all_end_together() -> None:
    found = why(clock_of("hsfl", (2,) * 4, *MEASURED, "allocation.policy=proposed"), 0, EVERYONE)
    assert found is not None
    assert found.client == 0  # the slowest link
    assert "ends with all others, but takes longest apart from the server's work" in found.words


@pytest.mark.parametrize("seed", range(20))
def test_cpsl_s_straggler_is_who_ends_last(seed: int) -> None:
    """It was the client with the most work, and the chart showed another's bar ending last."""
    rng = np.random.default_rng(seed)
    phases = Phases(*rng.uniform(0.1, 1, (8, 6)))
    line = timeline("cpsl", phases, rng.uniform(1, 4, 6), clusters=rng.permutation([0, 0, 0, 1, 1, 1]))
    assert line.straggler == int(line.finish_s.argmax())


def test_words_for_another_cut() -> None:
    assert other_cut_words("cut 2", 9.0, 12.0) == "With cut 2 the round would take 9 s instead of 12 s."
    assert other_cut_words("cut 2", 12.0, 9.0).startswith("No other cut is faster: with cut 2, the best of them,")
    assert "cut 2, allocated anew, the best of them," in other_cut_words("cut 2, allocated anew,", 12.0, 9.0)
    assert "as long" in other_cut_words("cut 2", 9.0, 9.0)


def test_the_longest_phase_of_a_plan() -> None:
    seconds = {"client": 1.0, "smashed": 5.0, "server": 2.0, "gradient": 3.0, "model_up": 0.5}
    held = Held.planned(seconds, COST, 2, 100.0)
    assert (held.phase, held.seconds, held.own_s) == ("smashed", 5.0, 11.5)
    assert held.amount == 100 * 3e4 / 8
    assert held.per_second == 100 * 3e4 / 5
    assert replace(held, phase="client").words(None, 0).startswith("its own computing takes 5 s of its 11.5 s")
