from dataclasses import replace

import numpy as np
import pytest

from hsfl.framework_table import METHODS
from hsfl.report import gantt
from tests.report.fabricated import a_timeline, record, timed

pytest.importorskip("matplotlib")


def bars(axes, name):
    """(row, start, end) of the bars of a phase, or of the waiting."""
    (container,) = [one for one in axes.containers if one.get_label() == name]
    boxes = [(patch.get_y() + patch.get_height() / 2, patch.get_x(), patch.get_width()) for patch in container.patches]
    return [(round(row), start, start + width) for row, start, width in boxes]


def words(axes):
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("num_clients", [1, 4])
def test_bars_end_with_the_round_and_what_is_left_is_waiting(name, num_clients):
    timeline = a_timeline(name, num_clients)
    one = timed(timeline)
    (axes,) = gantt.gantt_figure(one).axes
    phases = [gantt.PHASE_LABELS[phase] for phase in one.phases]
    ends = [end for phase in phases for _, _, end in bars(axes, phase)]
    assert max(ends) == pytest.approx(one.round_s)
    assert axes.get_xlim() == pytest.approx((0, one.round_s))
    for k in gantt.gantt_rows(one):
        waiting = gantt.waiting_spans(one, k)
        assert sum(end - start for start, end in waiting) == pytest.approx(one.waiting_s[k], abs=1e-9)


def test_dropped_clients_break_off_at_tau():
    free = a_timeline("hsfl", 6)
    tau_s = float(np.sort(free.finish_s)[3])  # the two slowest are late
    one = timed(
        a_timeline("hsfl", 6, tau_s, started=np.arange(6) != int(free.finish_s.argmin())), cuts=[3, 4, 5, 6, 7, 8]
    )
    assert len(one.dropped) == 2
    assert gantt.gantt_tau_s(one) == pytest.approx(tau_s)
    (axes,) = gantt.gantt_figure(one).axes
    (crosses,) = [line for line in axes.get_lines() if line.get_label().startswith("dropped at tau")]
    assert crosses.get_ydata().tolist() == one.dropped
    np.testing.assert_allclose(crosses.get_xdata(), tau_s)
    marks = words(axes)
    assert [k for k, mark in enumerate(marks) if "dropped" in mark] == one.dropped
    assert [k for k, mark in enumerate(marks) if "straggler" in mark] == [one.straggler]
    assert marks.count("did not start") == 1
    idle = marks.index("did not start")
    assert idle not in {row for row, _, _ in bars(axes, "waiting")}
    assert [label.get_text() for label in axes.get_yticklabels()][2] == "client 2   cut 5"


def test_nobody_dropped_means_no_tau():
    assert gantt.gantt_tau_s(record()) is None


def test_centralised_learning_is_one_row():
    (axes,) = gantt.gantt_figure(timed(a_timeline("cl", 5))).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["main server"]
    assert gantt.gantt_rows(record(framework="cl", straggler=1)) == [1]  # the last upload, in round 1


@pytest.mark.parametrize("num_clients", [50, 80])
def test_large_fleets(num_clients):
    one = timed(a_timeline("splitfed_v1", num_clients))
    (axes,) = gantt.gantt_figure(one).axes
    assert len(axes.get_yticks()) == 50
    assert ("50 of 80 clients" in axes.get_title(loc="left")) == (num_clients > 50)
    assert one.straggler in gantt.gantt_rows(one)


def test_a_round_in_which_nothing_happens():
    gantt.gantt_figure(record(round_s=0.0, phases={}, started=[], kept=[], straggler=None, waiting_s=[0.0, 0.0]))


def test_rounds_below_each_other_share_time_and_legend():
    short, long = timed(a_timeline("hsfl", 3)), timed(a_timeline("sl", 4))
    page = gantt.gantt_of_rounds([long, short], ["SL, as it is", None], "five devices")
    above, below = page.axes
    assert above.get_xlim() == below.get_xlim() == pytest.approx((0, long.round_s))
    assert above.get_title(loc="left").startswith("SL, as it is, round 1")
    assert below.get_title(loc="left").startswith("HSFL, round 1")
    assert below.get_xlabel().endswith("\nfive devices")
    (legend,) = page.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert len(names) == len(set(names))
    assert {gantt.PHASE_LABELS[phase] for phase in short.phases} < set(names)
    (mark,) = [text for text in below.texts if text.get_text() == "straggler"]
    assert mark.xy == (short.round_s, short.straggler)  # at the end of its own round, not of the longest one


def level_round(**downloads):
    """Three clients that end their part after 9 s, with so many seconds of work each, and download the model then."""
    ends_s, downs_s = [9.0, 9.0 + 4e-6, 9.0], list(downloads.get("downs_s", [1.0, 1.0, 1.0]))
    phases = {
        "client_forward": {"start_s": [0.0] * 3, "end_s": ends_s},
        "model_down": {"start_s": [max(ends_s)] * 3, "end_s": [max(ends_s) + down_s for down_s in downs_s]},
    }
    round_s = max(ends_s) + max(downs_s)
    waiting_s = [round_s - end_s - down_s for end_s, down_s in zip(ends_s, downs_s)]
    clients = {"cuts": [1, 2, 3], "started": [0, 1, 2], "kept": [0, 1, 2]}
    return record(**clients, phases=phases, round_s=round_s, waiting_s=waiting_s, straggler=1)


@pytest.mark.parametrize("downs_s", [[1.0, 1.0, 1.0], [0.2, 0.5, 1.0]])
def test_nobody_is_called_the_straggler_where_all_end_together(downs_s):
    """Within 4e-7 of the round, whatever their downloads at the end take."""
    one = level_round(downs_s=downs_s)
    assert gantt.end_together(one)
    assert gantt.named_straggler(one) is None
    (axes,) = gantt.gantt_figure(one).axes
    assert "straggler" not in words(axes)
    assert ("waiting" in axes.get_legend_handles_labels()[1]) == (min(downs_s) < max(downs_s))  # a hair is none
    assert {label.get_fontweight() for label in axes.get_yticklabels()} == {"normal"}


def test_who_waits_for_the_servers_alone_ends_together_with_the_others():
    one, parts = level_round(), {"swap": 0.5, "test": 1.5}
    longer = replace(one, round_s=one.round_s + 2.0, waiting_s=[waiting_s + 2.0 for waiting_s in one.waiting_s])
    assert gantt.named_straggler(replace(longer, modelled_ending_s=parts)) is None
    assert gantt.named_straggler(longer) == 1


def test_a_hair_more_is_a_straggler():
    one = level_round()
    late = [*one.waiting_s[:2], one.waiting_s[2] + 2e-5]
    assert gantt.named_straggler(replace(one, waiting_s=late)) == 1
    assert not gantt.end_together(replace(one, kept=[0, 1], dropped=[2]))
    assert not gantt.end_together(replace(one, started=[1], kept=[1]))  # alone, there is nobody to end with


@pytest.mark.parametrize("name", [name for name in METHODS if name != "cl"])
def test_clients_that_differ_have_a_straggler(name):
    assert gantt.named_straggler(timed(a_timeline(name, 4))) is not None


def test_a_large_fleet_that_ends_together():
    crowd = {
        "num_clients": 300, "num_started": 300, "num_kept": 300, "cuts": {"1": 300}, "finish_s": [9.0] * 7,
        "waiting_s": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.8], "phases_s": {"model_down": [0.2, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]},
        "straggler_s": {},
    }  # fmt: skip
    nothing = {"cuts": [], "started": [], "kept": [], "waiting_s": [], "phases": {}}
    one = record(crowd=crowd, straggler=7, **nothing)
    assert gantt.named_straggler(one) is None
    assert gantt.named_straggler(replace(one, crowd=crowd | {"finish_s": [8.0, *[9.0] * 6]})) == 7
    in_step = crowd | {
        "waiting_s": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 3.0]
    }  # all end together, after waiting in every step
    assert gantt.named_straggler(replace(one, crowd=in_step)) == 7


def test_clients_have_their_names():
    (axes,) = gantt.gantt_figure(
        timed(a_timeline("hsfl", 2), cuts=[3, 4]), names=["ward-1", "a $name of thirty letters or so"]
    ).axes
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == ["ward-1   cut 3", r"a \$name of thirty l…   cut 4"]
