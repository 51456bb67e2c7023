"""The Gantt chart of a round as a figure, in the manner of the paper's Fig. 1(b).

A row is a client (`_label_client_rows` writes its name and cut), a bar is a phase (`_draw_phase_bars`, named by `PHASE_LABELS`), and a hatched
bar is waiting. The same chart on the page is drawn by `assets/gantt.js`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.formats import ENDLESS, seconds
from hsfl.network.clock import LEVEL, PHASES
from hsfl.report.compared_runs import display_name, framework_pools_data
from hsfl.report.figure_style import ALARM, FAINT, INK, STYLE, add_side_legend, escape_dollars, matplotlib
from hsfl.runs.run_folder.records import RoundRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASE_COLOURS = {  # a hue for who works (client, radio, server, model exchange), dark forward and light back
    "client_forward": "#0072B2",
    "smashed": "#117755",
    "server_forward": "#D55E00",
    "server_backward": "#F5B183",
    "gradient": "#7FCDB0",
    "client_backward": "#8CC6EC",
    "decoder": "#555555",
    "model_up": "#882255",
    "model_down": "#D9A5C8",
}
PHASE_LABELS = {
    "client_forward": "client forward",
    "smashed": "smashed data up",
    "server_forward": "server forward",
    "server_backward": "server backward",
    "gradient": "gradient down",
    "client_backward": "client backward",
    "decoder": "decoder (beside)",
    "model_up": "model up",
    "model_down": "model down",
}
MAX_ROWS = 50  # clients in a Gantt chart
LONGEST_NAME = 20  # letters of a client's name

SMASHED = "smashed data: the activations of the client's last unit"
X_LABEL = "seconds from the start of the round; a bar is a phase in all mini-batches together"


def gantt_figure(
    record: RoundRecord,
    title: str | None = None,
    pooled: bool | None = None,
    names: Sequence[str] = (),
    note: str | None = None,
) -> "Figure":
    """One round: a row for each client, a bar for each phase, hatched where the client waits.

    pooled: whether the data are on the server; by default as the built-in framework of the record has it.
    names: [K] of the clients, if they have any. note: a line beneath, such as the cuts and the allocation of the run.
    """
    return gantt_of_rounds([record], [title], note, pooled, names)


def gantt_of_rounds(
    records: Sequence[RoundRecord],
    titles: Sequence[str | None],
    note: str | None = None,
    pooled: bool | None = None,
    names: Sequence[str] = (),
) -> "Figure":
    """Several rounds below each other, on one time axis and with one legend."""
    mpl = matplotlib()
    shown_clients = [gantt_rows(record, pooled) for record in records]
    longest_s = max(record.round_s for record in records) or 1.0
    sizes = [np.interp(len(clients), [1, 10, 50], [0.5, 0.36, 0.2]) * len(clients) for clients in shown_clients]
    with mpl.rc_context(STYLE):
        height = 1.2 + sum(size + 0.5 for size in sizes)
        figure = mpl.figure.Figure(figsize=(10, height), layout="constrained")
        all_axes = figure.subplots(len(records), sharex=True, squeeze=False, height_ratios=sizes)[:, 0]
        for axes, record, clients, title in zip(all_axes, records, shown_clients, titles):
            on_server = framework_pools_data(record.framework) if pooled is None else pooled
            row_names = ["main server"] if on_server else [names[k] if names else f"client {k}" for k in clients]
            _draw_round(axes, record, clients, title, row_names, on_server)
        all_axes[-1].set_xlim(0, longest_s)
        if longest_s >= ENDLESS:
            all_axes[-1].xaxis.set_major_formatter(lambda x, _: f"{x / longest_s:.3g} of the round")
        smashed = SMASHED if any("smashed" in record.phases for record in records) else None
        all_axes[-1].set_xlabel("\n".join(filter(None, (X_LABEL, smashed, note))), fontsize=8.5)
        _draw_phase_legend(figure, all_axes)
    return figure


def _draw_round(
    axes: "Axes", record: RoundRecord, clients: list[int], title: str | None, names: list[str], pooled: bool
) -> None:
    font = float(np.interp(len(clients), [1, 10, 50], [9.5, 9.5, 7]))
    _draw_phase_bars(axes, record, clients)
    _draw_waiting_bars(axes, record, clients)
    _label_client_rows(axes, record, clients, names, font, pooled)
    _mark_dropped(axes, record, clients, font)
    axes.axvline(record.round_s, color=INK, linewidth=1)
    axes.set_ylim(len(clients) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_title(_gantt_title(record, clients, title, pooled), loc="left", fontsize=10.5, fontweight="bold")


def _draw_phase_legend(figure: "Figure", all_axes: Sequence["Axes"]) -> None:
    """Every phase of any round once, in the order of the work; waiting and drops at the end."""
    handles = {name: handle for axes in all_axes for handle, name in zip(*axes.get_legend_handles_labels())}
    order = [*PHASE_LABELS.values(), "waiting"]
    names = sorted(handles, key=lambda name: order.index(name) if name in order else len(order))
    add_side_legend(figure, [handles[name] for name in names], names, sample=2.0)


def gantt_rows(record: RoundRecord, pooled: bool | None = None) -> list[int]:
    """The clients that have a row: all or, of a large fleet, the clients that wait least. CL has one row, the main server."""
    if framework_pools_data(record.framework) if pooled is None else pooled:
        return [record.straggler or 0]  # in round 1, whose data arrive last
    everyone = list(range(len(record.cuts)))
    if len(everyone) <= MAX_ROWS:
        return everyone
    started = set(record.started)
    return sorted(
        sorted(everyone, key=lambda k: (k != record.straggler, k not in started, record.waiting_s[k]))[:MAX_ROWS]
    )


def gantt_tau_s(record: RoundRecord) -> float | None:
    """The second at which clients were dropped, which is where their work breaks off; None if no client was dropped."""
    work = [times for phase, times in record.phases.items() if phase != "model_down"]
    return max((times["end_s"][k] for times in work for k in record.dropped), default=None)


def waiting_spans(record: RoundRecord, client: int) -> list[tuple[float, float]]:
    """The parts of the round that no phase of the client covers."""
    spans = sorted((times["start_s"][client], times["end_s"][client]) for times in record.phases.values())
    waiting, covered_s = [], 0.0
    for start_s, end_s in [*((a, b) for a, b in spans if b > a), (record.round_s, record.round_s)]:
        if start_s > covered_s:
            waiting.append((covered_s, start_s))
        covered_s = max(covered_s, end_s)
    return waiting


def end_together(record: RoundRecord) -> bool:
    """Whether all clients end their part of the round together, apart from rounding, so that no client holds another one up. Who
    waits at the end of the round, while others download the model and servers swap, test and write, still ended together with them."""
    if record.num_started < 2 or record.dropped:
        return False
    level_s = LEVEL * record.round_s
    if record.crowd is not None:
        phases_s, quantiles_s = record.crowd["phases_s"], (record.crowd["finish_s"], record.crowd["waiting_s"])
        finish_s, waiting_s, down_s = (q[-1] - q[0] for q in (*quantiles_s, phases_s.get("model_down", [0.0])))
        return finish_s <= level_s and waiting_s - down_s <= level_s
    closing = record.phases.get("model_down")
    ends_s = [times["end_s"] for phase, times in record.phases.items() if phase != "model_down"]
    servers_s = sum((record.modelled_ending_s or {}).values())  # everybody waits while the servers end the round
    for k in record.started:
        is_last = closing is not None and all(end_s[k] <= closing["start_s"][k] for end_s in ends_s)
        closing_s = max(closing["end_s"]) - closing["end_s"][k] if closing is not None and is_last else 0.0
        if record.waiting_s[k] - closing_s - servers_s > level_s:
            return False
    return True


def named_straggler(record: RoundRecord) -> int | None:
    """The client that ends last, as people are told; None where all end together."""
    return None if end_together(record) else record.straggler


def _draw_phase_bars(axes: "Axes", record: RoundRecord, clients: list[int]) -> None:
    for phase in PHASES:
        if phase not in record.phases:
            continue
        start_s, end_s = (np.array(record.phases[phase][name], float)[clients] for name in ("start_s", "end_s"))
        rows = np.flatnonzero(end_s > start_s)
        beside = phase == "decoder"  # it runs beside the server's work: a thin bar over it
        axes.barh(
            rows + (0.25 if beside else 0.0),
            (end_s - start_s)[rows],
            left=start_s[rows],
            height=0.26 if beside else 0.76,
            color=PHASE_COLOURS[phase],
            edgecolor="white",
            linewidth=0.4,
            label=PHASE_LABELS[phase],
            zorder=3 if beside else 2,
        )


def _draw_waiting_bars(axes: "Axes", record: RoundRecord, clients: list[int]) -> None:
    started = set(record.started)
    gaps = [(row, a, b) for row, k in enumerate(clients) if k in started for a, b in waiting_spans(record, k)]
    gaps = [gap for gap in gaps if gap[2] - gap[1] > LEVEL * record.round_s]  # what rounding leaves is no waiting
    if gaps:
        rows, start_s, end_s = (np.array(column) for column in zip(*gaps))
        axes.barh(
            rows, end_s - start_s, left=start_s, height=0.76, color="none", edgecolor="#C4C4C4", linewidth=0,
            hatch="////", label="waiting", zorder=1,
        )  # fmt: skip


def _short_name(name: str) -> str:
    """The name as far as the margin has room for it."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _label_client_rows(
    axes: "Axes", record: RoundRecord, clients: list[int], names: list[str], font: float, pooled: bool
) -> None:
    """Client and cut at the left; at the right who was the straggler, was dropped or did not start."""
    row_labels = (
        names
        if pooled
        else [f"{escape_dollars(_short_name(name))}   cut {record.cut_labels[k]}" for name, k in zip(names, clients)]
    )
    axes.set_yticks(range(len(clients)), row_labels, fontsize=font)
    axes.tick_params(axis="y", length=0)
    last = named_straggler(record)
    for row, k in enumerate(clients if not pooled else []):
        straggler, dropped, started = k == last, k in record.dropped, k in record.started
        marks = {"straggler": straggler, "dropped": dropped, "did not start": not started}
        axes.annotate(
            ", ".join(mark for mark, holds in marks.items() if holds),
            xy=(record.round_s, row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=font,
            color=ALARM if dropped else INK if started else FAINT,
            fontweight="bold" if straggler else "normal",
            annotation_clip=False,
        )
        axes.get_yticklabels()[row].set_fontweight("bold" if straggler else "normal")


def _mark_dropped(axes: "Axes", record: RoundRecord, clients: list[int], font: float) -> None:
    tau_s = gantt_tau_s(record)
    if tau_s is None:
        return
    axes.axvline(tau_s, color=ALARM, linewidth=1, linestyle=(0, (4, 2)))
    rows = [row for row, k in enumerate(clients) if k in record.dropped]
    look: dict[str, Any] = {
        "marker": "X",
        "color": ALARM,
        "markeredgecolor": "white",
        "markersize": font,
        "linestyle": "none",
    }
    axes.plot([tau_s] * len(rows), rows, **look, label=f"dropped at tau = {seconds(tau_s)}", zorder=5, clip_on=False)


def _gantt_title(record: RoundRecord, clients: list[int], title: str | None, pooled: bool) -> str:
    name = escape_dollars(title or display_name(record.framework))
    text = f"{name}, round {record.round}: {seconds(record.round_s)}"
    if len(clients) < len(record.cuts) and not pooled:
        text += f" ({len(clients)} of {len(record.cuts)} clients, those that wait least)"
    return text
