"""A sweep as the page shows it."""

from typing import Any

import numpy as np

from hsfl.report.page_rounds import shorts
from hsfl.report.page_slots import slots
from hsfl.report.sweep import Sweep, default_metrics, find_metric, say_setting
from hsfl.report.sweep_figure import Panel, axis_of, curve_of, panels_of


def sweep_part(folder: str, sweep: Sweep) -> dict[str, Any]:
    """Every metric that some run has: its curves in each panel, and its cells in the table."""
    axis, panels = axis_of(sweep), panels_of(sweep)
    order = {repr(value): place for place, value in enumerate(axis.values)}

    def x_places(panel: Panel) -> list[int]:
        return [order[repr(sweep.values[point][0])] for point in panel.points]

    def curves(panel: Panel, metric: str) -> list[dict[str, Any]]:
        found = [curve_of(sweep, panel, label, metric) for label in sweep.labels]
        return [dict(zip(("mean", "low", "high"), map(shorts, curve))) for curve in found]

    metrics = sweep.metrics
    first = [name for name in default_metrics(sweep.plan_only, sweep.target, sweep.metric) if name in metrics]
    return {
        "folder": folder,
        "fields": sweep.fields,
        "series": [
            {"label": label, "name": sweep.names[label], "slot": slot, "style": style}
            for label, slot, style in slots(sweep.labels, sweep.styles)
        ],
        "axis": {"x": axis.x.tolist(), "texts": axis.texts, "numbers": axis.numbers, "log": axis.log},
        "panels": [{"name": panel.name, "places": x_places(panel)} for panel in panels],
        "metrics": [
            {"key": name, "title": sweep.title(name), "panels": [curves(panel, name) for panel in panels]}
            for name in [*first, *(name for name in metrics if name not in first)]
        ],
        "num_seeds": len(sweep.seeds),
        "linked": False,  # whether the points' own pages lie where this one can reach them
        "points": [
            {"settings": [say_setting(*pair) for pair in zip(sweep.fields, values)], "folder": place}
            for values, place in zip(sweep.values, sweep.folders)
        ],
        "cells": {
            name: [[_cell(sweep, point, label, name) for label in sweep.labels] for point in range(len(sweep.values))]
            for name in metrics
        },
        "notes": sweep.notes(),
    }


def _cell(sweep: Sweep, point: int, label: str, metric: str) -> list[float | None]:
    """A cell of the table: the mean, and half of its interval."""
    found, scale = sweep.estimate(point, label, metric), find_metric(metric).scale
    half = None if found.mean is None or found.high is None else found.high - found.mean
    return shorts([np.nan if value is None else scale * value for value in (found.mean, half)])
