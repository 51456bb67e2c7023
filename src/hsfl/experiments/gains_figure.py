"""On what the gain of own cuts depends."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hsfl.experiments.columns import FOUR
from hsfl.experiments.fleets import Answer
from hsfl.experiments.table1_report import name_of
from hsfl.report.figure import FAINT, STYLE, matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_, _, SINGLE, OWN = FOUR
COLOURS = {"ham10000": "#0072B2", "cifar10": "#D55E00", "mnist": "#009E73"}


def gain(answer: Answer) -> float:
    """Own cuts over the best single cut under the proposed allocation."""
    return answer.mean_s(SINGLE) / answer.mean_s(OWN)


def dependence_figure(answers: Sequence[Answer]) -> "Figure":
    """The gain of every fleet against its slowest device, and against the smallest max_cut."""
    mpl = matplotlib()
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(11.5, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for data in dict.fromkeys(a.data for a in answers):
            for storage, marker in (("drawn", "o"), ("memory", "^")):
                own = [a for a in answers if (a.data, a.storage) == (data, storage)]
                if not own:
                    continue
                look = {
                    "color": COLOURS.get(data, "#555555"),
                    "marker": marker,
                    "alpha": 0.75,
                    "s": 26,
                    "linewidths": 0,
                }
                label = f"{name_of(data)}, max_cut {'drawn' if storage == 'drawn' else 'from memory'}"
                gains = [gain(a) for a in own]
                left.scatter([min(a.cpu_hz) / 1e9 for a in own], gains, label=label, **look)
                jitter = np.linspace(-0.25, 0.25, len(own))
                right.scatter([min(a.max_cut) + j for a, j in zip(own, jitter)], gains, **look)
        left.set_xscale("log")
        left.set(xlabel="slowest device (1e9 cycles per second)", ylabel="own cuts over the best single cut")
        right.set(xlabel="smallest max_cut of the fleet")
        right.tick_params(labelleft=True)
        right.set_xticks(sorted({min(a.max_cut) for a in answers}))
        left.legend(frameon=False, fontsize=8.5)
        figure.supxlabel("one point a fleet; proposed allocation, each with its own cuts", fontsize=8, color=FAINT)
    return figure
