"""Each framework's round by hand, and who was dropped, who waited, who was slowest.

Two clients, two mini-batches. Per batch: client 0 takes 1 + 2 + (1 + 2) + 1 + 2 = 9 s, client 1 takes
2 + 1 + (1 + 1) + 2 + 4 = 11 s (forward, smashed, server forward and backward, gradient, backward).
"""

import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest

from hsfl.errors import InputError
from hsfl.framework_table import METHODS
from hsfl.models.cost_table import CostTable
from hsfl.network import clock
from hsfl.network.clock import timeline
from hsfl.network.even_allocation import psl_batch_sizes
from hsfl.network.in_step_times import queue_order
from hsfl.network.latency import Phases, Rates
from hsfl.rng import stream
from tests.naming import raises

PHASES = Phases(
    client_forward_s=np.array([1.0, 2.0]),
    smashed_s=np.array([2.0, 1.0]),
    server_forward_s=np.array([1.0, 1.0]),
    server_backward_s=np.array([2.0, 1.0]),
    gradient_s=np.array([1.0, 2.0]),
    client_backward_s=np.array([2.0, 4.0]),
    model_up_s=np.array([3.0, 1.0]),
    model_down_s=np.array([1.0, 2.0]),
)
NONE = np.zeros(2)
WHOLE = replace(PHASES, smashed_s=NONE, server_forward_s=NONE, server_backward_s=NONE, gradient_s=NONE)
POOLED = replace(PHASES, client_forward_s=NONE, client_backward_s=NONE)


def block(line, phase, client):
    p = clock.PHASES.index(phase)
    return line.start_s[p, client], line.end_s[p, client]


@pytest.mark.parametrize("name", ["hsfl", "splitfed_v1", "fsl"])
def test_parallel_with_a_server_copy_each(name):
    """max(2 x 9 + 3, 2 x 11 + 1) + max(1, 2) = 23 + 2."""
    line = timeline(name, PHASES, 2)
    assert line.round_s == 25
    assert line.finish_s.tolist() == [21, 23]
    assert line.kept.all()
    assert line.straggler == 1
    assert line.waiting_s.tolist() == [25 - 21 - 1, 0]  # client 0 waits for the upload and for the slower download
    assert block(line, "client_forward", 0) == (0, 2)
    assert block(line, "smashed", 0) == (2, 6)
    assert block(line, "server_forward", 0) == (6, 8)
    assert block(line, "server_backward", 0) == (8, 12)
    assert block(line, "gradient", 0) == (12, 14)
    assert block(line, "client_backward", 0) == (14, 18)
    assert block(line, "model_up", 0) == (18, 21)
    assert block(line, "model_down", 0) == (23, 24)
    assert line.phase_s["client_backward"].tolist() == [4, 8]


def test_a_straggler_is_dropped_at_tau_and_costs_tau():
    line = timeline("hsfl", PHASES, 2, tau_s=22.0)
    assert line.kept.tolist() == [True, False]
    assert line.dropped.tolist() == [False, True]
    assert line.round_s == 22 + 2  # the dropped client still gets the new model
    assert line.finish_s.tolist() == [21, 22]
    assert line.straggler == 1
    assert block(line, "model_up", 1) == (22, 22)  # never began
    assert timeline("hsfl", PHASES, 2, tau_s=23.0).kept.all()  # exactly tau is in time


def test_a_planned_drop_costs_no_waiting():
    line = timeline("hsfl", PHASES, 2, tau_s=22.0, started=np.array([True, False]))
    assert line.kept.tolist() == line.started.tolist() == [True, False]
    assert not line.dropped.any()
    assert line.round_s == 21 + 2
    assert line.waiting_s[1] == line.finish_s[1] == 0
    assert [phase for client, phase, _, _ in line.spans() if client == 1] == ["model_down"]


def test_tau_shorter_than_anyone_keeps_nobody_and_time_passes():
    line = timeline("fl", WHOLE, 2, tau_s=1.0)
    assert not line.kept.any()
    assert line.round_s == 1 + 2
    assert np.isfinite(line.waiting_s).all()


def test_nobody_starts():
    for name in ("hsfl", "splitfed_v2", "psl", "cpsl", "sl"):
        line = timeline(name, PHASES, 2, started=np.zeros(2, bool), clusters=np.arange(2))
        assert line.round_s == {"hsfl": 2, "splitfed_v2": 2, "psl": 2}.get(name, 0)  # the model still goes out
        assert line.straggler == -1


def test_fl():
    """max(2 x 3 + 3, 2 x 6 + 1) + 2."""
    assert timeline("fl", WHOLE, 2).round_s == 15
    with raises(InputError, "smashed of client 0", "2.0 seconds", "fl"):
        timeline("fl", PHASES, 2)


def test_sl():
    """(1 + 2 x 9 + 3) + (2 + 2 x 11 + 1): the head is received, trained and handed on."""
    line = timeline("sl", PHASES, 2)
    assert line.round_s == 22 + 25
    assert block(line, "model_down", 0) == (0, 1)
    assert block(line, "client_forward", 0) == (1, 3)
    assert block(line, "model_up", 0) == (19, 22)
    assert block(line, "model_down", 1) == (22, 24)
    assert line.waiting_s.tolist() == [25, 22]
    assert line.finish_s.tolist() == [22, 47]
    assert line.straggler == 1
    turned = timeline("sl", PHASES, 2, order=np.array([1, 0]))
    assert turned.round_s == 47
    assert turned.finish_s.tolist() == [47, 25]
    assert timeline("sl", PHASES, 2, tau_s=1.0).kept.all()  # it waits for everyone


def test_splitfed_v2_is_a_queue():
    """All smashed data are there at 3. Client 0 is served until 6 and done at 9, client 1 until 8 and done at 14; the
    other way round, 5 and 11 against 8 and 11. At the end max E + max M = 5."""
    both_ways = np.array([[0, 1], [1, 0]])
    assert timeline("splitfed_v2", PHASES, 2, order=both_ways[0]).round_s == 2 * 14 + 5
    assert timeline("splitfed_v2", PHASES, 2, order=both_ways[1]).round_s == 2 * 11 + 5
    line = timeline("splitfed_v2", PHASES, 2, order=both_ways)
    assert line.round_s == 14 + 11 + 5
    assert block(line, "server_forward", 1) == (6 + 3, 6 + 3 + 2)  # begins at 6 in step one, at 3 in step two
    assert block(line, "gradient", 1) == (8 + 5, 8 + 5 + 4)
    assert line.waiting_s.tolist() == [30 - 18 - 3 - 1, 30 - 22 - 1 - 2]


def test_a_client_joins_its_first_steps_and_a_part_of_a_batch_is_a_part():
    """Client 1 makes one step; client 0 alone takes 9 in the next, or 4.5 for half of one."""
    first = np.array([0, 1])
    assert timeline("splitfed_v2", PHASES, np.array([2, 1]), order=first).round_s == 14 + 9 + 5
    assert timeline("splitfed_v2", PHASES, np.array([1.5, 1]), order=first).round_s == 14 + 4.5 + 5
    assert timeline("hsfl", PHASES, np.array([1.5, 0.5])).finish_s.tolist() == [16.5, 6.5]


def test_without_an_order_the_queue_is_first_come_first_served():
    early = replace(PHASES, client_forward_s=np.array([1.0, 0.5]))  # client 1 arrives first
    assert timeline("splitfed_v2", early, 1).round_s == 11 + 5


def test_psl():
    """A step: 3 + (3 + 2) + max(1 + 2, 2 + 4) = 14, then max E + max M in every step, or never."""
    line = timeline("psl", PHASES, 2)
    assert line.round_s == 2 * (14 + 5)
    assert block(line, "server_forward", 0) == block(line, "server_forward", 1) == (6, 10)
    assert block(line, "model_up", 0) == (28, 34)
    assert timeline("psl", PHASES, 2, cut_gradient=True).round_s == 28
    assert timeline("psl", PHASES, 1.5).round_s == 1.5 * 14 + 2 * 5  # half a step has whole models
    with raises(InputError, "client 1 is 1.0", "client 0 is 2.0"):
        timeline("psl", PHASES, np.array([2, 1]))


def test_locfedmix_sl_overlaps_the_decoder():
    """3 + max(max(13, 2 x 5 + 1) + 2, max(1, 2 x 5 + 2) + 4) = 3 + max(15, 16)."""
    line = timeline("locfedmix_sl", PHASES, 2, decoder_s=np.array([13.0, 1.0]))
    assert line.round_s == 2 * 19 + 5
    assert block(line, "decoder", 0) == (6, 6 + 26)
    assert block(line, "client_backward", 0) == (19 + 18 - 2 * 2, 19 + 18)  # ends with the last step
    assert line.waiting_s.tolist() == [43 - 2 * (3 + 13 + 2) - 3 - 1, 43 - 2 * (3 + 12 + 4) - 1 - 2]


def test_cpsl_clusters_take_turns():
    """Apart: (1 + 2 x 9 + 3) + (2 + 2 x 11 + 1); together: 2 + 2 x 14 + 3."""
    assert timeline("cpsl", PHASES, 2, clusters=np.array([0, 1])).round_s == 22 + 25
    assert timeline("cpsl", PHASES, 2, clusters=np.array([0, 0])).round_s == 33
    swapped = timeline("cpsl", PHASES, 2, clusters=np.array([5, 2]))
    assert swapped.finish_s.tolist() == [47, 25]
    with raises(InputError, "clusters", "one number"):
        timeline("cpsl", PHASES, 2)


def test_cl_is_server_compute_alone_after_one_upload():
    line = timeline("cl", POOLED, 2)
    assert line.round_s == 2 * 3 + 2 * 2
    assert line.straggler == -1
    assert line.waiting_s.tolist() == [0, 0]
    cost = CostTable(*[np.zeros(3)] * 4, smashed_bits=[8, 1, 0], gradient_bits=np.zeros(3), model_bits=np.zeros(3))
    upload = clock.raw_upload("cl", cost, np.array([10, 20]), Rates(*[np.array([4.0, 16.0])] * 4))
    assert upload.round_s == 20
    assert upload.end_s[clock.PHASES.index("smashed")].tolist() == [20, 10]
    first = clock.after_upload(upload, line)
    assert first.round_s == 20 + line.round_s
    assert first.end_s.max() == first.round_s
    assert first.end_s[clock.PHASES.index("smashed")].tolist() == [20, 10]
    assert first.start_s[clock.PHASES.index("server_forward")].tolist() == [20, 20]
    assert first.waiting_s.tolist() == [0, 10]  # client 1 waits for client 0's data
    assert first.straggler == 0
    with raises(InputError, "raw data of client 1", "inf"):
        clock.raw_upload("cl", cost, np.array([10, 20]), Rates(*[np.array([4.0, 0.0])] * 4))


def test_spans_are_the_bars_of_a_chart():
    spans = list(timeline("hsfl", WHOLE, 1).spans())
    assert spans[:3] == [(0, "client_forward", 0, 1), (0, "client_backward", 1, 3), (0, "model_up", 3, 6)]
    assert len(spans) == 8


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("gossip", PHASES, 1), ("framework 'gossip'", "choose one of cl")),
        (("hsfl", PHASES, np.array([1, 0])), ("num_batches", "client 1 is 0.0")),
        (("hsfl", PHASES, np.nan), ("num_batches", "client 0 is nan")),
        (("hsfl", PHASES, 1, 0.0), ("tau_s is 0.0",)),
        (("hsfl", PHASES, 1, np.nan), ("tau_s is nan",)),
        (("hsfl", replace(PHASES, smashed_s=np.array([1, np.inf])), 1, 5.0), ("smashed of client 1", "inf seconds")),
        (("hsfl", replace(PHASES, gradient_s=np.array([-1, 1.0])), 1), ("gradient of client 0", "-1.0 seconds")),
        (("cl", PHASES, 1), ("client_forward of client 0", "1.0 seconds", "cl has none")),
    ],
)
def test_bad_input(arguments, parts):
    with raises(InputError, *parts):
        timeline(*arguments)


def test_bad_orders():
    for order in (np.array([0, 0]), np.array([0]), np.zeros((1, 1, 2), int), np.array([[0, 1]])):
        with pytest.raises(InputError, match="order"):
            timeline("splitfed_v2", PHASES, 2, order=order)


def test_a_client_that_does_not_start_needs_no_rate():
    lost = {field.name: np.array([1.0, np.inf]) for field in fields(Phases)} | {"model_down_s": np.ones(2)}
    for name in ("hsfl", "sl", "splitfed_v2", "psl", "locfedmix_sl", "cpsl"):
        line = timeline(name, Phases(**lost), 1, started=np.array([True, False]), clusters=np.zeros(2, int))
        assert line.kept.tolist() == [True, False]


def test_psl_batches_are_in_proportion_to_samples():
    """Clients of 30 and 10 samples, batch 5: 7.5 and 2.5 a step."""
    assert psl_batch_sizes(np.array([30, 10]), 5).tolist() == [7.5, 2.5]


def test_the_clock_serves_whom_training_serves():
    """As `SplitFedV2.serve` draws it: a permutation of the clients that join the step."""
    order = queue_order(3, round=5, num_batches=np.array([1.5, 3, 2]))
    assert order.shape == (3, 3)
    assert order[0].tolist() == stream(3, "server order", 5, 0).permutation([0, 1, 2]).tolist()
    assert order[2].tolist() == [1, 0, 2]


def test_a_timeline_of_ones_own_is_asked(monkeypatch):
    told = {}

    def own(phases, num_batches, tau_s, **words):
        told.update(words, num_batches=num_batches)
        return answer

    row = replace(METHODS["hsfl"], name="mine", timeline=own)
    monkeypatch.setitem(METHODS, "mine", row)
    phases = Phases(*np.ones((len(fields(Phases)), 2)))
    answer = timeline("hsfl", phases, 3.0)
    assert timeline("mine", phases, 3.0, started="who", cut_gradient=True) is answer
    assert (told["num_batches"], told["started"], told["cut_gradient"]) == (3.0, "who", True)
    answer = replace(answer, kept=answer.kept[:1])
    with raises(InputError, "round_s", "kept (1,)"):
        timeline("mine", phases, 3.0)


def test_the_network_and_a_saved_table_need_no_torch():
    modules = "clock, clusters, history"
    code = f"import sys; from hsfl.network import {modules}; from hsfl.models import cost_table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
