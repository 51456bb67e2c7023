"""`report.html`: one page that holds all it needs and works without a network.

Text from folders reaches the page as JSON inside a script element that is not run, and is put into the document as text,
never as markup. The page's policy allows its own scripts alone.

All that a page shows, as one JSON value.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.config import parse_stored
from hsfl.files import write_atomic
from hsfl.formats import QUANTILES
from hsfl.report.compared_runs import PlanRecord, Run, display_name
from hsfl.report.comparison import SENT
from hsfl.report.comparison_summary import gained, summarise_runs
from hsfl.report.curves import QUANTITIES, Band
from hsfl.report.page.page_rounds import (
    MAX_CLIENTS,
    client_counts,
    gantt_strides,
    round_columns,
    short_number,
    short_numbers,
)
from hsfl.report.page.page_sources import PageRun, Sources, read_sources
from hsfl.report.page.page_sweep import slots, sweep_part
from hsfl.report.page.page_words import describe_config, plan_sentence, settings_rows, sharing, subset_notes
from hsfl.report.plots import foreign_styles, label_band
from hsfl.report.sweep_results import FILE as SWEEP_FILE
from hsfl.runs.records import ClientsRecord, best_round
from hsfl.tasks import Metric

MAX_POINTS = 1000  # of a curve


def page_data(sources: Sources) -> dict[str, Any]:
    """The page's JSON."""
    runs = [one.run for one in sources.runs]
    strides = gantt_strides(runs)
    labels = list(dict.fromkeys(run.label for run in runs))
    names = {run.label: run.name for run in runs}
    configs = {names[label]: next(o.config for o in sources.runs if o.run.label == label) for label in labels}
    if not runs:
        configs = {
            folder: parse_stored(plan.config, f"{folder}/plan.json")
            for folder, plan in sources.plans
            if plan.config is not None
        }
        configs |= {folder: parse_stored(sweep.config, f"{folder}/{SWEEP_FILE}") for folder, sweep in sources.sweeps}
    return {
        "title": page_title(sources),
        "target": sources.target,
        "metrics": _metrics(runs),
        "runs": [_run_part(one, every) for one, every in zip(sources.runs, strides)],
        "series": [
            _series(label, slot, style, [run for run in runs if run.label == label])
            for label, slot, style in slots(labels, foreign_styles(runs))
        ],
        "tables": _tables(sources),
        "sharing": sharing([(one.run.name, one.trained_as) for one in sources.runs]),
        "settings": settings_rows(configs) if configs else [],
        "sweeps": [sweep_part(folder, sweep) for folder, sweep in sources.sweeps],
        "plans": [_plan_part(folder, plan) for folder, plan in sources.plans],
        "max_clients": MAX_CLIENTS,
    }


def _plan_part(folder: str, plan: PlanRecord) -> dict[str, Any]:
    words = {"words": " ".join(plan.assumed), "why_words": plan_sentence(plan)}
    return {"folder": folder} | asdict(plan) | words


def _metrics(runs: list[Run]) -> list[dict[str, Any]]:
    """The metrics of all tasks on the page, those of the first run in front."""
    found = {metric.name: metric for run in reversed(runs) for metric in run.metrics}
    ordered = dict.fromkeys(metric.name for run in runs for metric in run.metrics)
    return [_metric_part(found[name]) for name in ordered]


def page_title(sources: Sources) -> str:
    """The page's title: what was run, planned or swept."""
    names = list({one.run.label: one.run.name for one in sources.runs}.values())
    if not names and sources.sweeps:
        folder, sweep = sources.sweeps[0]
        config = parse_stored(sweep.config, f"{folder}/{SWEEP_FILE}")
        what = [config.model.name if "model.name" not in sweep.fields else "models"]
        what += [config.data.name] if "data.name" not in sweep.fields else []
        return f"{_who(list(sweep.names.values()))} against {' and '.join(sweep.fields)}: {' on '.join(what)}"
    if not names:
        return "A plan for HSFL"
    tasks = _tasks(sources)
    return f"{_who(names)}: {tasks[0] if len(tasks) == 1 else f'{len(tasks)} tasks'}"


def _who(names: list[str]) -> str:
    who = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return who if len(who) <= 60 else f"{len(names)} contenders"


def _tasks(sources: Sources) -> list[str]:
    return list(dict.fromkeys(f"{one.config.model.name} on {one.config.data.name}" for one in sources.runs))


def _notes(one: PageRun) -> list[str]:
    """What the run warned of when it began; a page may be all that somebody sees of it."""
    notes = [] if one.clients is None else one.clients.notes
    return notes + ([one.plan_note] if one.plan_note else [])


def _run_part(one: PageRun, every: int | None) -> dict[str, Any]:
    run, config, records = one.run, one.config, one.run.records
    evaluated = [record for record in records if record.recall is not None]
    best = best_round(records, run.metric)
    main = None if one.clients is None else one.clients.main_flops_per_s
    redrawn = one.clients is not None and one.clients.redrawn
    on_machines = any(record.measured is not None for record in records)
    words = describe_config(config, run.look, main, redrawn, on_machines)
    return {
        "label": run.label,
        "name": run.name + (f", seed {run.seed}" if run.seed is not None else ""),
        "framework": config.framework,
        "framework_name": display_name(config.framework, run.look),
        "pooled": run.pools_data,
        "seed": run.seed,
        "folder": str(one.path),
        "status": one.status,
        "words": words + [f"Note: {note}." for note in _notes(one)],
        "subset": next(iter(subset_notes([("", config.network.sample_scale)])), None),
        "environment": one.environment,
        "policy": config.allocation.policy,
        "main_hz": config.network.main_hz,
        "measured": config.network.kind == "measured" or on_machines,
        "tau_s": config.train.tau_s,
        "num_clients": config.fleet.num_clients,
        "planned_rounds": config.train.rounds,
        "num_rounds": len(records),
        "sim_time_s": run.sim_time_s,
        "wall_s": sum(record.wall_s for record in records),
        "metrics": [_metric_part(metric) for metric in run.metrics],
        "best_accuracy": run.best("test_accuracy"),
        "best": run.best(run.metric.name),
        "last": run.last(run.metric.name),
        "best_round": best.round if best else None,
        "last_accuracy": run.last("test_accuracy"),
        "drops": run.drops,
        "left_out": run.left_out,
        "bytes": run.bytes,
        "recall": short_numbers([np.nan if r is None else r for r in evaluated[-1].recall or []]) if evaluated else [],
        "clients": None if one.clients is None or one.clients.crowd is not None else _client_part(one.clients),
        "crowd": None if one.clients is None else one.clients.crowd,
        "quantiles": QUANTILES,
        "counts": client_counts(records),
        "gantt_every": every,
        "rounds": round_columns(
            records, list(run.bytes), every, run.pools_data, one.clients.names if one.clients else None
        ),
    }


def _metric_part(metric: Metric) -> dict[str, Any]:
    return {"name": metric.name, "title": metric.title, "percent": metric.percent}


def _client_part(clients: ClientsRecord) -> dict[str, Any]:
    """The record of the clients, with a list over clients cut to as many as the page shows."""
    num_clients, whole = len(clients.num_samples), ("class_names", "input_shape", "unit_names", "notes")
    return {
        name: value[:MAX_CLIENTS]
        if isinstance(value, list) and name not in whole and len(value) == num_clients
        else value
        for name, value in asdict(clients).items()
    }


def _series(label: str, slot: int, style: dict[str, Any] | None, runs: list[Run]) -> dict[str, Any]:
    curves = {
        quantity: {over: _points(label_band(runs, quantity, over)) for over in ("time", "rounds")}
        for quantity in dict.fromkeys((*QUANTITIES, *(metric.name for metric in runs[0].metrics)))
    }
    return {
        "label": label,
        "name": runs[0].name,
        "slot": slot,
        "style": style,
        "num_seeds": len(runs),
        "steps": len(runs) == 1,
        "curves": curves,
    }


def _points(band: Band) -> dict[str, list[Any]] | None:
    """x, mean, and the interval where there is one; evenly thinned if they are many."""
    if not len(band.x):
        return None
    at = np.unique(np.linspace(0, len(band.x) - 1, min(len(band.x), MAX_POINTS)).round().astype(int))
    points = {
        name: [short_number(float(v), 6) for v in getattr(band, name)[at]] for name in ("x", "mean", "low", "high")
    }
    return points if np.isfinite(band.low).any() else {name: points[name] for name in ("x", "mean")}


def _tables(sources: Sources) -> dict[str, Any] | None:
    """What was gained in words, the comparison's tables and its notes, where there is something to compare."""
    if len(sources.runs) < 2:
        return None
    tasks = _tasks(sources)
    compared = summarise_runs([one.run for one in sources.runs], sources.target, paired=len(tasks) == 1)
    notes = [*compared.notes]
    if len(tasks) > 1:
        notes.append(
            f"These are runs of {len(tasks)} tasks ({', '.join(tasks)}), which are not to be set against each other: "
            "the table of differences in accuracy and speed is left out."
        )
    subset = [(one.run.name, one.config.network.sample_scale) for one in sources.runs]
    tables: list[dict[str, Any]] = [
        {"title": name, "header": header, "rows": rows, "notes": subset_notes(subset) if name.startswith(SENT) else []}
        for name, header, rows in compared.tables()
    ]
    return {"gained": gained(compared), "tables": tables, "notes": notes}


QUOTED = {True: "'self'", False: "'none'"}
SCRIPTS = ("base.js", "curves.js", "gantt.js", "tables.js", "sweep.js", "main.js")


def write_page(paths: Sequence[str | Path], out: str | Path) -> Path:
    """The page of these folders (runs, comparisons, plans) as one file."""
    data = page_data(read_sources(paths))
    for sweep in data["sweeps"]:
        folder = Path(sweep["folder"])
        beside = folder.resolve() == Path(out).parent.resolve()
        sweep["linked"] = beside and all((folder / one["folder"] / "report.html").exists() for one in sweep["points"])
    text = render(data)
    write_atomic(Path(out), lambda scratch: scratch.write_bytes(text.encode("utf-8", "replace")))
    return Path(out)


def render(data: dict[str, Any], watch: bool = False) -> str:
    """The page as text; with `watch` it asks its server for news."""
    script = "\n".join(_asset(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "TITLE": html.escape(str(data["title"])),
        "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        f"img-src data:; connect-src {QUOTED[watch]}; base-uri 'none'; form-action 'none'",
        "STYLE": _asset("page.css"),
        "WATCH": "yes" if watch else "no",
        "DATA": safe_json(data),
        "SCRIPT": script,
    }
    return re.sub(r"%%([A-Z]+)%%", lambda match: parts[match[1]], _asset("page.html"))


def waiting_data(reason: str) -> dict[str, Any]:
    """The page's JSON while there is nothing to show: it says why, and the page asks until there is something."""
    nothing: dict[str, Any] = {name: [] for name in ("runs", "series", "settings", "plans", "sweeps", "sharing")}
    return nothing | {"title": "No run is there yet", "waiting": reason, "target": None, "tables": None}


def safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever its strings hold."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", text)


@cache
def _asset(name: str) -> str:
    return resources.files("hsfl.report").joinpath("assets", name).read_text("utf-8")
