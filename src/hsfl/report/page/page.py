"""`report.html`: one page that holds all it needs and works without a network.

All that the page shows is one JSON value, which `page_data` makes; `render` puts it and the scripts of `report/assets` into one file.
Text from folders reaches the page as JSON inside a script element that is not run, and is put into the document as text,
never as markup. The page's policy allows its own scripts alone.
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
from hsfl.errors import InputError
from hsfl.files import write_atomic
from hsfl.formats import QUANTILES
from hsfl.report.compared_runs import SWEEP_FILE, PlanRecord, Run, built_in, display_name
from hsfl.report.comparison import SENT, means_words
from hsfl.report.comparison_summary import gain_sentences, summarise_runs
from hsfl.report.curves import QUANTITIES, Band
from hsfl.report.page.page_rounds import (
    MAX_CLIENTS,
    client_counts,
    gantt_strides,
    round_columns,
    short_number,
    short_numbers,
)
from hsfl.report.page.page_sources import WAY_OUT, PageRun, Sources, read_sources
from hsfl.report.page.page_sweep import style_slots, sweep_json, table_json
from hsfl.report.page.page_words import (
    describe_config,
    plan_sentence,
    policy_sentences,
    settings_rows,
    shared_training_notes,
    subset_notes,
)
from hsfl.report.plots import foreign_styles, frameworks_of, label_band
from hsfl.runs.run_folder.records import ClientsRecord, best_round
from hsfl.tasks import Metric

MAX_POINTS = 1000  # of a curve
SCRIPTS = ("base.js", "curves.js", "gantt.js", "tables.js", "sweep.js", "main.js")
PAGE_NAME = "report.html"
CONNECT_SOURCE = {True: "'self'", False: "'none'"}


# --- the file


def write_page(paths: Sequence[str | Path], out: str | Path) -> Path:
    """The page of these folders (runs, comparisons, plans) as one file."""
    data = page_data(read_sources(paths))
    for sweep in data["sweeps"]:
        folder = Path(sweep["folder"])
        beside = folder.resolve() == Path(out).parent.resolve()
        sweep["linked"] = beside and all(
            (folder / point["folder"] / "report.html").exists() for point in sweep["points"]
        )
    text = render(data)
    write_atomic(Path(out), lambda scratch: scratch.write_bytes(text.encode("utf-8", "replace")))
    return Path(out)


def write_report(folders: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Show runs, comparisons, sweeps and plans on one page, which works without a network; returns the page's path.

    folders: one or more. out: the page to write; by default report.html, inside the folder if only one is given.
    """
    paths = [Path(folders)] if isinstance(folders, str | Path) else [Path(folder) for folder in folders]
    if not paths:
        raise InputError(f"folders are none; {WAY_OUT}")
    return write_page(paths, out or (paths[0] / PAGE_NAME if len(paths) == 1 else PAGE_NAME))


def render(data: dict[str, Any], watch: bool = False) -> str:
    """The page as text; with `watch` it asks its server for news."""
    script = "\n".join(_asset(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "TITLE": html.escape(str(data["title"])),
        "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        f"img-src data:; connect-src {CONNECT_SOURCE[watch]}; base-uri 'none'; form-action 'none'",
        "STYLE": _asset("page.css"),
        "WATCH": "yes" if watch else "no",
        "DATA": safe_json(data),
        "SCRIPT": script,
    }
    return re.sub(r"%%([A-Z]+)%%", lambda match: parts[match[1]], _asset("page.html"))


def waiting_data(reason: str) -> dict[str, Any]:
    """The page's JSON while there is nothing to show: it says why, and the page asks until there is something."""
    nothing: dict[str, Any] = {
        name: [] for name in ("runs", "series", "settings", "plans", "sweeps", "sharing", "policies")
    }
    return nothing | {"title": "No run is there yet", "waiting": reason, "target": None, "tables": None}


def safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever its strings hold."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", text)


@cache
def _asset(name: str) -> str:
    return resources.files("hsfl.report").joinpath("assets", name).read_text("utf-8")


# --- the page's JSON


def page_data(sources: Sources) -> dict[str, Any]:
    """The page's JSON."""
    runs = [page_run.run for page_run in sources.runs]
    strides = gantt_strides(runs)
    labels = list(dict.fromkeys(run.label for run in runs))
    names = {run.label: run.name for run in runs}
    configs = {
        names[label]: next(page_run.config for page_run in sources.runs if page_run.run.label == label)
        for label in labels
    }
    if not runs:
        configs = {
            folder: parse_stored(plan.config, f"{folder}/plan.json")
            for folder, plan in sources.plans
            if plan.config is not None
        }
        configs |= {folder: parse_stored(sweep.config, f"{folder}/{SWEEP_FILE}") for folder, sweep in sources.sweeps}
    return {
        "title": _page_title(sources),
        "target": sources.target,
        "metrics": _metrics_json(runs),
        "runs": [_run_json(page_run, stride) for page_run, stride in zip(sources.runs, strides)],
        "series": [
            _series_json(label, slot, style, [run for run in runs if run.label == label])
            for label, slot, style in style_slots(frameworks_of(runs), foreign_styles(runs))
        ],
        "tables": _comparison_tables(sources),
        "sharing": shared_training_notes([(page_run.run.name, page_run.trained_as) for page_run in sources.runs]),
        "settings": settings_rows(configs) if configs else [],
        "sweeps": [sweep_json(folder, sweep) for folder, sweep in sources.sweeps],
        "plans": [_plan_json(folder, plan) for folder, plan in sources.plans],
        "policies": policy_sentences(_policy_names(sources)),
        "max_clients": MAX_CLIENTS,
    }


def _policy_names(sources: Sources) -> list[str]:
    """The policies that occur on the page; for `own`, also those that it stands for here."""
    runs = [(page_run.config.allocation.policy, page_run.config.framework) for page_run in sources.runs]
    own_rows = [built_in(framework) for policy, framework in runs if policy == "own"]
    names = [policy for policy, _ in runs] + [row.own_policy for row in own_rows if row is not None]
    names += [name for _, plan in sources.plans for name in (plan.policy, *plan.baselines_s)]
    return names + [name for _, sweep in sources.sweeps for name in sweep.policies]


def _plan_json(folder: str, plan: PlanRecord) -> dict[str, Any]:
    sentences = {"words": " ".join(plan.assumed), "why_words": plan_sentence(plan)}
    return {"folder": folder} | asdict(plan) | sentences


def _metrics_json(runs: list[Run]) -> list[dict[str, Any]]:
    """The metrics of all tasks on the page; the first run's metrics come first."""
    by_name = {metric.name: metric for run in reversed(runs) for metric in run.metrics}
    ordered = dict.fromkeys(metric.name for run in runs for metric in run.metrics)
    return [_metric_json(by_name[name]) for name in ordered]


def _page_title(sources: Sources) -> str:
    """The page's title: what was run, planned or swept."""
    names = list({page_run.run.label: page_run.run.name for page_run in sources.runs}.values())
    if not names and sources.sweeps:
        folder, sweep = sources.sweeps[0]
        config = parse_stored(sweep.config, f"{folder}/{SWEEP_FILE}")
        subject = [config.model.name if "model.name" not in sweep.fields else "models"]
        subject += [config.data.name] if "data.name" not in sweep.fields else []
        return f"{_who(list(sweep.names.values()))} against {' and '.join(sweep.fields)}: {' on '.join(subject)}"
    if not names:
        return "A plan for HSFL"
    tasks = _tasks(sources)
    return f"{_who(names)}: {tasks[0] if len(tasks) == 1 else f'{len(tasks)} tasks'}"


def _who(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    who = f"{', '.join(names[:-1])} and {names[-1]}"
    return who if len(who) <= 60 and not any("," in name for name in names) else f"{len(names)} contenders"


def _tasks(sources: Sources) -> list[str]:
    return list(
        dict.fromkeys(f"{page_run.config.model.name} on {page_run.config.data.name}" for page_run in sources.runs)
    )


def _start_notes(page_run: PageRun) -> list[str]:
    """What the run warned of when it began; a page may be all that somebody sees of it."""
    notes = [] if page_run.clients is None else page_run.clients.notes
    return notes + ([page_run.plan_note] if page_run.plan_note else [])


def _run_json(page_run: PageRun, stride: int | None) -> dict[str, Any]:
    run, config, records = page_run.run, page_run.config, page_run.run.records
    evaluated = [record for record in records if record.recall is not None]
    best_record = best_round(records, run.metric)
    main_flops_per_s = None if page_run.clients is None else page_run.clients.main_flops_per_s
    redrawn = page_run.clients is not None and page_run.clients.redrawn
    on_machines = any(record.measured is not None for record in records)
    means = means_words([(config, run.cuts, run.policy)])
    sentences = describe_config(config, run.look, main_flops_per_s, redrawn, on_machines, means)
    return {
        "label": run.label,
        "name": run.name + (f", seed {run.seed}" if run.seed is not None else ""),
        "framework": config.framework,
        "framework_name": display_name(config.framework, run.look),
        "pooled": run.pools_data,
        "seed": run.seed,
        "folder": str(page_run.path),
        "status": page_run.status,
        "words": sentences + [f"Note: {note}." for note in _start_notes(page_run)],
        "subset": next(iter(subset_notes([("", config.network.sample_scale)])), None),
        "environment": page_run.environment,
        "policy": config.allocation.policy,
        "main_hz": config.network.main_hz,
        "measured": config.network.kind == "measured" or on_machines,
        "tau_s": config.train.tau_s,
        "num_clients": config.fleet.num_clients,
        "planned_rounds": config.train.rounds,
        "num_rounds": len(records),
        "sim_time_s": run.sim_time_s,
        "wall_s": sum(record.wall_s for record in records),
        "metrics": [_metric_json(metric) for metric in run.metrics],
        "best_accuracy": run.best("test_accuracy"),
        "best": run.best(run.metric.name),
        "last": run.last(run.metric.name),
        "best_round": best_record.round if best_record else None,
        "last_accuracy": run.last("test_accuracy"),
        "drops": run.drops,
        "left_out": run.left_out,
        "bytes": run.bytes,
        "recall": short_numbers([np.nan if r is None else r for r in evaluated[-1].recall or []]) if evaluated else [],
        "clients": None
        if page_run.clients is None or page_run.clients.crowd is not None
        else _clients_json(page_run.clients),
        "crowd": None if page_run.clients is None else page_run.clients.crowd,
        "quantiles": QUANTILES,
        "counts": client_counts(records),
        "gantt_every": stride,
        "rounds": round_columns(
            records, list(run.bytes), stride, run.pools_data, page_run.clients.names if page_run.clients else None
        ),
    }


def _metric_json(metric: Metric) -> dict[str, Any]:
    return {"name": metric.name, "title": metric.title, "percent": metric.percent}


def _clients_json(clients: ClientsRecord) -> dict[str, Any]:
    """The record of the clients, with a list over clients cut to as many as the page shows."""
    num_clients, uncut = len(clients.num_samples), ("class_names", "input_shape", "unit_names", "notes")
    return {
        name: value[:MAX_CLIENTS]
        if isinstance(value, list) and name not in uncut and len(value) == num_clients
        else value
        for name, value in asdict(clients).items()
    }


def _series_json(label: str, slot: int, style: dict[str, Any] | None, runs: list[Run]) -> dict[str, Any]:
    curves = {
        quantity: {over: _curve_points(label_band(runs, quantity, over)) for over in ("time", "rounds")}
        for quantity in dict.fromkeys((*QUANTITIES, *(metric.name for metric in runs[0].metrics)))
    }
    return {
        "label": label,
        "name": runs[0].name,
        "slot": slot,
        "style": style,
        "num_seeds": sum(bool(run.records) for run in runs),
        "steps": len(runs) == 1,
        "curves": curves,
    }


def _curve_points(band: Band) -> dict[str, list[Any]] | None:
    """x, mean, and the interval where there is one; evenly thinned if they are many."""
    if not len(band.x):
        return None
    at = np.unique(np.linspace(0, len(band.x) - 1, min(len(band.x), MAX_POINTS)).round().astype(int))
    points = {
        name: [short_number(float(v), 6) for v in getattr(band, name)[at]] for name in ("x", "mean", "low", "high")
    }
    return points if np.isfinite(band.low).any() else {name: points[name] for name in ("x", "mean")}


def _comparison_tables(sources: Sources) -> dict[str, Any] | None:
    """The comparison of the page's runs: its gain sentences, tables and notes; None for a single run."""
    if len(sources.runs) < 2:
        return None
    tasks = _tasks(sources)
    comparison = summarise_runs([page_run.run for page_run in sources.runs], sources.target, paired=len(tasks) == 1)
    notes = [*comparison.notes]
    if len(tasks) > 1:
        notes.append(
            f"These are runs of {len(tasks)} tasks ({', '.join(tasks)}), which are not to be set against each other: "
            "the table of differences in accuracy and speed is left out."
        )
    scales = [(page_run.run.name, page_run.config.network.sample_scale) for page_run in sources.runs]
    tables: list[dict[str, Any]] = [
        table_json(table) | {"notes": subset_notes(scales) if table.title.startswith(SENT) else []}
        for table in comparison.tables()
    ]
    return {"gained": gain_sentences(comparison), "tables": tables, "notes": notes}
