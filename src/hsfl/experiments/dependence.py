"""On what the gain of own cuts depends: whether the client with the most samples can go deep, and whether all others can, too.

*Deep* is the first cut that sends less than cut 1 does; in ResNet-18 that is cut 4, where smashed data halve (with images of 28x28
they fall by a third). A fleet is of one of three kinds, by who can hold so many units.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.experiments.columns import FOUR
from hsfl.experiments.fleets import Answer
from hsfl.experiments.shared import table
from hsfl.experiments.statistics import ratio_over_fleets
from hsfl.experiments.table1_report import name_of
from hsfl.models.cost_table import CostTable
from hsfl.report.figure_style import FAINT, STYLE, matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_, _, SINGLE, OWN = FOUR
COLOURS = {"ham10000": "#0072B2", "cifar10": "#D55E00", "mnist": "#009E73"}
MARKERS = {"drawn": "o", "memory": "^"}
STORAGE_WORDS = {"drawn": "drawn", "memory": "from memory"}
ALL, LARGEST, NOT_LARGEST = (
    "every client can hold the deep cut",
    "the client with the most samples can, another cannot",
    "the client with the most samples cannot",
)
Costs = Mapping[str, CostTable]  # by data set


def gain(answer: Answer) -> float:
    """Own cuts over the best single cut under the proposed allocation."""
    return answer.mean_s(SINGLE) / answer.mean_s(OWN)


def deep_cut(cost: CostTable) -> int:
    """The first cut that sends less smashed data than cut 1; the last cut where there is none."""
    fewer = np.flatnonzero(cost.smashed_bits[1:] < cost.smashed_bits[1])
    return 1 + int(fewer[0]) if len(fewer) else cost.num_units


def kind(answer: Answer, deep: int) -> str:
    """Who of the fleet can hold `deep` units."""
    if min(answer.max_cut) >= deep:
        return ALL
    return LARGEST if answer.max_cut[_largest(answer)] >= deep else NOT_LARGEST


def deep_s(answer: Answer, cost: CostTable) -> float:
    """The seconds of a round that the client with the most samples would compute at the deep cut, whether it can hold it or not."""
    client = _largest(answer)
    return float(answer.num_samples[client] * cost.client_flops[deep_cut(cost)] / answer.cpu_hz[client])


def speed_spread(answer: Answer) -> float:
    """The standard deviation of the logarithms of the clients' speeds."""
    return float(np.std(np.log(answer.cpu_hz)))


def _largest(answer: Answer) -> int:
    return int(np.argmax(answer.num_samples))


def dependence_table(answers: Sequence[Answer], costs: Costs) -> str:
    """The gain of the fleets of each kind, for one kind of storage, and how the gain goes with speeds."""
    data_sets = list(dict.fromkeys(a.data for a in answers))
    rows = []
    for words in (LARGEST, ALL, NOT_LARGEST):
        of_kind = ([a for a in answers if a.data == d and kind(a, deep_cut(costs[d])) == words] for d in data_sets)
        rows.append([words, *map(_said, of_kind)])
    by_seconds = "first kind: rank correlation with the seconds that this client would compute there"
    by_spread = "all fleets: rank correlation with the spread of speeds"
    for words, value, kinds in (
        (by_seconds, lambda a: deep_s(a, costs[a.data]), (LARGEST,)),
        (by_spread, speed_spread, (LARGEST, ALL, NOT_LARGEST)),
    ):
        own = ([a for a in answers if a.data == d and kind(a, deep_cut(costs[d])) in kinds] for d in data_sets)
        rows.append([words, *(_correlation(each, value) for each in own)])
    deep = sorted({deep_cut(costs[data]) for data in data_sets})
    return (
        f"Own cuts over the best single cut, proposed, by who can hold the deep cut, the {' or '.join(map(str, deep))} units from which on less is "
        "sent than at cut 1; geometric mean (range; number of fleets):\n\n"
        + table(["", *map(name_of, data_sets)], rows)
    )


def _said(answers: Sequence[Answer]) -> str:
    if not answers:
        return "no fleet"
    found = ratio_over_fleets([gain(a) for a in answers])
    return f"{found.mean:.3f} ({found.smallest:.2f} to {found.largest:.2f}; n = {len(answers)})"


def _correlation(answers: Sequence[Answer], value: Callable[[Answer], float]) -> str:
    """Spearman's rank correlation between a fleet's gain and another quantity."""
    if len(answers) < 4:
        return "too few"
    from scipy.stats import spearmanr  # here, because it takes half a second to load

    return f"{spearmanr([gain(a) for a in answers], [value(a) for a in answers]).statistic:+.2f}"


def dependence_figure(answers: Sequence[Answer], costs: Costs) -> "Figure":
    """The gain of every fleet against the deep seconds of its client with the most samples; one picture for each kind of fleet."""
    mpl = matplotlib()
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(12.5, 4.6), layout="constrained")
        axes = figure.subplots(1, 3, sharex=True, sharey=True)
        for panel, words in zip(axes, (LARGEST, ALL, NOT_LARGEST)):
            _scatter(panel, [a for a in answers if kind(a, deep_cut(costs[a.data])) == words], costs)
            panel.set_title(words, fontsize=10)
            panel.tick_params(labelleft=True)
        axes[0].set_ylabel("own cuts over the best single cut")
        axes[1].set_xlabel("seconds that the client with the most samples would compute in a round at the deep cut")
        for data in dict.fromkeys(a.data for a in answers):
            for storage in dict.fromkeys(a.storage for a in answers):
                label = f"{name_of(data)}, max_cut {STORAGE_WORDS[storage]}"
                axes[1].scatter([], [], label=label, **_look(data, storage))
        axes[1].legend(frameon=False, fontsize=8.5, loc="upper right")
        figure.supxlabel("one point a fleet; proposed allocation, each with its own cuts", fontsize=8, color=FAINT)
    return figure


def _scatter(panel: "Axes", answers: Sequence[Answer], costs: Costs) -> None:
    for a in answers:
        panel.scatter(deep_s(a, costs[a.data]), gain(a), **_look(a.data, a.storage))
    panel.set_xscale("log")


def _look(data: str, storage: str) -> dict[str, Any]:
    colour = COLOURS.get(data, "#555555")
    return {"color": colour, "marker": MARKERS[storage], "alpha": 0.75, "s": 26, "linewidths": 0}
