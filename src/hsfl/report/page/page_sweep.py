"""A sweep as the page's JSON, and the style slot of each label.

A slot is the number under which the page's style sheet and scripts keep a colour, dashes and a shape.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hsfl.framework_table import METHODS, Style
from hsfl.report.compared_runs import built_in
from hsfl.report.comparison import contenders_table
from hsfl.report.page.page_rounds import short_numbers
from hsfl.report.plots import first_labels
from hsfl.report.sweep_figure import Panel, axis_of, axis_positions, curve_of, panels_of
from hsfl.report.sweep_results import Sweep, default_metrics, find_metric, say_setting
from hsfl.report.tables import SummaryTable

SHAPES = {"x": 0, "X": 0, "s": 1, "v": 2, "^": 3, "D": 4, "d": 4, "P": 5, "<": 6, ">": 7, "*": 8, "p": 3}  # else a dot


def sweep_json(folder: str, sweep: Sweep) -> dict[str, Any]:
    """Every metric that some run has: its curves in each panel, and its cells in the table."""
    axis, panels = axis_of(sweep), panels_of(sweep)

    def curves(panel: Panel, metric: str) -> list[dict[str, Any]]:
        label_curves = [curve_of(sweep, panel, label, metric) for label in sweep.labels]
        return [dict(zip(("mean", "low", "high"), map(short_numbers, curve))) for curve in label_curves]

    metrics = sweep.metrics
    first = [name for name in default_metrics(sweep.plan_only, sweep.target, sweep.metric) if name in metrics]
    return {
        "folder": folder,
        "fields": sweep.fields,
        "series": [
            {"label": label, "name": sweep.names[label], "slot": slot, "style": style}
            for label, slot, style in style_slots(sweep.frameworks, sweep.styles)
        ],
        "axis": {"x": axis.x.tolist(), "texts": axis.texts, "numbers": axis.numbers, "log": axis.log},
        "panels": [{"name": panel.name, "places": axis_positions(sweep, axis, panel)} for panel in panels],
        "metrics": [
            {"key": name, "title": sweep.title(name), "panels": [curves(panel, name) for panel in panels]}
            for name in [*first, *(name for name in metrics if name not in first)]
        ],
        "num_seeds": len(sweep.seeds),
        "linked": False,  # whether the points' own pages lie where this one can reach them
        "points": [
            {"settings": [say_setting(*pair) for pair in zip(sweep.fields, values)], "folder": point_folder}
            for values, point_folder in zip(sweep.values, sweep.folders)
        ],
        "cells": {
            name: [
                [_cell_json(sweep, point, label, name) for label in sweep.labels] for point in range(len(sweep.values))
            ]
            for name in metrics
        },
        "contenders": table_json(contenders_table(sweep.contenders)),
        "differences": {name: [table_json(table) for table in sweep.difference_tables([name])] for name in metrics},
        "notes": sweep.notes(),
    }


def table_json(table: SummaryTable) -> dict[str, Any]:
    """A table as the page shows it."""
    return {"title": table.title, "header": table.header, "rows": table.rows}


def _cell_json(sweep: Sweep, point: int, label: str, metric: str) -> list[float | None]:
    """A cell of the table: the mean, and half of its interval."""
    estimate, scale = sweep.estimate(point, label, metric), find_metric(metric).scale
    half = None if estimate.mean is None or estimate.high is None else estimate.high - estimate.mean
    return short_numbers([np.nan if value is None else scale * value for value in (estimate.mean, half)])


def style_slots(
    frameworks: Mapping[str, str], foreign: Mapping[str, Style]
) -> list[tuple[str, int, dict[str, Any] | None]]:
    """Each label with its slot: the first label of a built-in framework has the framework's slot, other labels take slots that are
    left. frameworks: by label.

    A framework that is not built in has a slot after those of the built-in frameworks, and its style goes with it.
    """
    built_in_names = [
        name for name in METHODS if built_in(name) is not None
    ]  # the page's style sheet has a slot for each
    firsts = first_labels(frameworks)
    slot_of = {label: built_in_names.index(name) for name, label in firsts.items() if name in built_in_names}
    foreign_labels = {firsts[name]: style for name, style in foreign.items() if name in firsts}
    slot_of |= {label: len(built_in_names) + place for place, label in enumerate(foreign_labels)}
    free = [slot for slot in reversed(range(len(built_in_names))) if slot not in slot_of.values()] or list(
        range(len(built_in_names))
    )
    other_labels = [label for label in frameworks if label not in slot_of]
    all_slots = slot_of | {label: free[place % len(free)] for place, label in enumerate(other_labels)}
    return [
        (label, all_slots[label], _page_style(foreign_labels[label]) if label in foreign_labels else None)
        for label in frameworks
    ]


def _page_style(style: Style) -> dict[str, Any]:
    """A style as the page draws it: a colour, the number of a shape, and dashes in pixels."""
    colour, marker, dashes = style
    lengths = () if dashes == "solid" else dashes[1]
    return {"colour": colour, "shape": SHAPES.get(marker, 9), "dashes": " ".join(f"{2 * n:g}" for n in lengths)}
