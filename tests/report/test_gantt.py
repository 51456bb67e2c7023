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


def test_clients_have_their_names():
    (axes,) = gantt.gantt_figure(
        timed(a_timeline("hsfl", 2), cuts=[3, 4]), names=["ward-1", "a $name of thirty letters or so"]
    ).axes
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == ["ward-1   cut 3", r"a \$name of thirty l…   cut 4"]
