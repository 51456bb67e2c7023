"""The figure of a plan: a bar for each client, in which a part is the seconds of a phase over the round."""

from typing import TYPE_CHECKING, Any

from hsfl.errors import InputError
from hsfl.formats import cut_words, seconds
from hsfl.report.figure_style import STYLE, escape_dollars, matplotlib
from hsfl.report.gantt import MAX_ROWS, PHASE_COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {  # the phases of a plan, with the colour of the same work in a Gantt chart
    "client": ("client", PHASE_COLOURS["client_forward"]),
    "smashed": ("smashed data up", PHASE_COLOURS["smashed"]),
    "waiting": ("waiting for the server", "#e6e6e6"),  # where the main server is one queue
    "server": ("server", PHASE_COLOURS["server_forward"]),
    "gradient": ("gradient down", PHASE_COLOURS["gradient"]),
    "model_up": ("model up", PHASE_COLOURS["model_up"]),
    "model_down": ("model down", PHASE_COLOURS["model_down"]),
}


def plan_figure(plan: Any) -> "Figure":
    """What each client spends its round on, in the first sampled round. plan: an answer of `hsfl plan`, or its record."""
    if plan.crowd is not None:
        raise InputError(
            f"a plan of {plan.crowd.num_clients:,} clients has no bar for each; look at its table, or keep it with --out "
            "and look at the page"
        )
    mpl = matplotlib()
    clients = plan.clients[:MAX_ROWS]
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(9, 1.4 + 0.3 * len(clients)), layout="constrained")
        axes = figure.subplots()
        left = [0.0] * len(clients)
        for phase in clients[0].seconds:  # in the order in which they happen
            label, colour = PARTS[phase]
            widths = [client.seconds[phase] for client in clients]
            axes.barh(range(len(clients)), widths, left=left, height=0.76, color=colour, label=label, edgecolor="white")
            left = [start + width for start, width in zip(left, widths)]
        axes.set_yticks(
            range(len(clients)),
            [f"{escape_dollars(client.name)}   cut {cut_words(client.cut, client.codec)}" for client in clients],
        )
        axes.set_ylim(len(clients) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        shown = f", the first {len(clients)} of {len(plan.clients)} clients" if len(clients) < len(plan.clients) else ""
        axes.set_title(f"{plan.policy}: mean round {seconds(plan.round_s, 4)}{shown}", loc="left", fontsize=10.5)
        axes.set_xlabel("seconds of each phase over the first sampled round")
        figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=8.5)
    return figure
