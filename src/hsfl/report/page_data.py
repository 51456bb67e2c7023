"""All that a page shows, read from run folders, comparisons and plans: one JSON value."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.config import RunConfig, parse_config
from hsfl.errors import InputError
from hsfl.files import read_record
from hsfl.report.comparing import compare
from hsfl.report.comparison import SENT
from hsfl.report.curves import QUANTITIES, Band
from hsfl.report.gained import gained
from hsfl.report.page_rounds import MAX_CLIENTS, client_counts, gantt_strides, round_columns, short, shorts
from hsfl.report.page_slots import slots
from hsfl.report.page_sweep import sweep_part
from hsfl.report.page_words import describe, settings_rows, sharing, subset_notes
from hsfl.report.plots import foreign_styles, label_band
from hsfl.report.records import CheckedPlan, ComparisonRecord, PlanRecord, TraceRecord
from hsfl.report.runs import Run, display_name, read_run, run_places, usual_order
from hsfl.report.sweep import FILE as SWEEP_FILE
from hsfl.report.sweep import Sweep, read_sweep
from hsfl.runs.folder import RunFolder
from hsfl.runs.records import QUANTILES, ClientsRecord

MAX_POINTS = 1000  # of a curve
WAY_OUT = "give the folder of a run, of a comparison, of a sweep, or of hsfl plan --out"
DEEPEST = 4  # levels below a folder in which runs are looked for, to name them


class NothingYet(InputError):
    """A folder that holds nothing to show, or is not there; a run may still come."""


@dataclass(frozen=True)
class PageRun:
    """A run with what else its folder holds."""

    run: Run
    path: Path
    config: RunConfig
    environment: dict[str, Any]
    clients: ClientsRecord | None
    trained_as: str | None  # the framework whose training it shares, with a clock of its own; None: trained itself
    plan_note: str | None  # what to say of a search for cuts that its time limit stopped

    @property
    def status(self) -> str:
        """A run that goes on after its last summary is under way."""
        return "under way" if self.run.status == "unfinished" else self.run.status


@dataclass(frozen=True)
class Sources:
    """What the folders of a page hold."""

    runs: list[PageRun]  # labelled; runs of one label differ in their seed
    plans: list[tuple[str, PlanRecord]]  # (folder, plan.json)
    target: float | None  # of a comparison
    sweeps: tuple[tuple[str, Sweep], ...] = ()  # (folder, what it holds)


def read_sources(paths: Sequence[str | Path]) -> Sources:
    """What the folders hold; wrong input if one holds nothing that a page can show."""
    found: list[tuple[Path | None, PageRun]] = []  # with the comparison it is of
    plans: list[tuple[str, PlanRecord]] = []
    targets: list[float | None] = []
    sweeps: list[tuple[str, Sweep]] = []
    for path in dict.fromkeys(map(Path, paths)):
        before = len(found) + len(plans)
        if (path / SWEEP_FILE).is_file():
            sweeps.append((str(path), read_sweep(path)))
            continue
        if (path / "config.json").is_file():
            found.append((None, _read(path, "")))
        places = {key: place for key, place in run_places(path).items() if (place / "config.json").is_file()}
        comparison = ComparisonRecord()
        if places and (path / "comparison.json").is_file():
            comparison = read_record(path / "comparison.json", ComparisonRecord)
            targets.append(comparison.target)
        for label in _own_order({label for label, _ in places}, list(comparison.labels)):
            found += [(path, _read(place, label)) for (of, _), place in sorted(places.items()) if of == label]
        if (path / "plan.json").is_file():
            plans.append((str(path), read_record(path / "plan.json", CheckedPlan)))
        if len(found) + len(plans) == before:
            missing = "does not exist" if not path.exists() else "holds no run, comparison or plan"
            below = ", ".join(runs_below(path))
            raise NothingYet(f"{path} {missing}; {f'there are runs below it: {below}' if below else WAY_OUT}")
    singles = [one for out, one in found if out is None]
    own = _labelled(singles, alone=len(singles) == len(found))
    names = _names([out for out, _ in found if out is not None])
    runs = []
    for out, one in found:
        folder = f",{names[out]}" if out is not None and len(names) > 1 else ""  # tells comparisons apart
        label = own[one.path] if out is None else f"{one.run.label}{folder}"
        runs.append(replace(one, run=replace(one.run, label=label)))
    target = next((target for target in targets if target is not None), None)
    return Sources(runs, plans, target, tuple(sweeps))


def _own_order(labels: set[str], own: list[str]) -> list[str]:
    """The labels in the order in which the comparison was asked for, then labels that it does not name, from HSFL to CL."""
    others = sorted(labels, key=lambda label: (-usual_order(label)[0], label))
    return [*(label for label in own if label in labels), *(label for label in others if label not in own)]


def runs_below(path: Path, most: int = 3) -> list[str]:
    """A few folders of runs below this one, the nearest first."""
    found: list[str] = []
    for level in range(1, DEEPEST + 1):
        configs = sorted(path.glob("*/" * level + "config.json"))
        found += [str(config.parent) for config in configs if (config.parent / "rounds.jsonl").is_file()]
        if len(found) >= most:
            break
    return found[:most]


def _read(path: Path, label: str) -> PageRun:
    folder = RunFolder(path)
    config = folder.config()
    run = read_run(path, label, config.seed)
    num_rounds = folder.ended().rounds
    if num_rounds is not None and num_rounds < len(run.records):
        run = replace(run, status="unfinished")  # resumed
    about = asdict(folder.environment()) if folder.environment_path.exists() else {}
    about |= {"plugins": run.look.files} if run.look is not None else {}
    trace = path / "trace.json"
    trained_as = read_record(trace, TraceRecord).trained_as if trace.exists() else None
    cuts = folder.cuts()
    return PageRun(run, path, config, about, folder.clients(), trained_as, None if cuts is None else cuts.note)


def _plan_config(tree: dict[str, Any], folder: str) -> RunConfig:
    try:
        return parse_config(tree, of_a_folder=True)
    except InputError as error:
        raise InputError(f"{folder}/plan.json: {error}") from None


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """The name of each folder; where two have the same name, the parts of their paths that not all have."""
    whole = {path: path.resolve() for path in paths}
    taken = [path.name for path in whole.values()]
    if len(set(taken)) == len(taken):
        return {path: where.name for path, where in whole.items()}
    common = set.intersection(*(set(where.parts) for where in whole.values()))
    names = {path: "/".join(part for part in where.parts if part not in common) for path, where in whole.items()}
    clear = len(set(names.values())) == len(names) and all(names.values())
    return names if clear else {path: str(path) for path in paths}


def _labelled(single: list[PageRun], alone: bool) -> dict[Path, str]:
    """Labels by folder. Runs of one config with different seeds share a label, the framework's name; where that does not tell them apart
    from others on the page (they are not `alone`, or two configs have the framework), the folder's name is added."""
    groups: dict[tuple[str, int], list[PageRun]] = {}
    for one in single:
        same = one.config.model_dump(mode="json", exclude={"seed", "log"})
        key = json.dumps(same, sort_keys=True)
        again = sum(of == key and any(o.run.seed == one.run.seed for o in runs) for (of, _), runs in groups.items())
        groups.setdefault((key, again), []).append(one)
    frameworks = [runs[0].config.framework for runs in groups.values()]
    names = _names([runs[0].path for runs in groups.values()])
    labels: dict[Path, str] = {}
    for runs in groups.values():
        framework = runs[0].config.framework
        clear = alone and frameworks.count(framework) == 1
        label = framework if clear else f"{framework},{names[runs[0].path]}"
        labels |= {one.path: label for one in runs}
    return labels


def page_data(sources: Sources) -> dict[str, Any]:
    """The page's JSON."""
    runs = [one.run for one in sources.runs]
    strides = gantt_strides(runs)
    labels = list(dict.fromkeys(run.label for run in runs))
    names = {run.label: run.name for run in runs}
    configs = {names[label]: next(o.config for o in sources.runs if o.run.label == label) for label in labels}
    if not runs:
        configs = {
            folder: _plan_config(plan.config, folder) for folder, plan in sources.plans if plan.config is not None
        }
        configs |= {folder: parse_config(sweep.config, of_a_folder=True) for folder, sweep in sources.sweeps}
    return {
        "title": title(sources),
        "target": sources.target,
        "runs": [_run_part(one, every) for one, every in zip(sources.runs, strides)],
        "series": [
            _series(label, slot, style, [run for run in runs if run.label == label])
            for label, slot, style in slots(labels, foreign_styles(runs))
        ],
        "tables": _tables(sources),
        "sharing": sharing([(one.run.name, one.config.framework, one.trained_as) for one in sources.runs]),
        "settings": settings_rows(configs) if configs else [],
        "sweeps": [sweep_part(folder, sweep) for folder, sweep in sources.sweeps],
        "plans": [{"folder": folder} | asdict(plan) for folder, plan in sources.plans],
        "max_clients": MAX_CLIENTS,
    }


def title(sources: Sources) -> str:
    """The page's title: what was run, planned or swept."""
    names = list({one.run.label: one.run.name for one in sources.runs}.values())
    if not names and sources.sweeps:
        sweep = sources.sweeps[0][1]
        config = parse_config(sweep.config, of_a_folder=True)
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


def _run_part(one: PageRun, every: int | None) -> dict[str, Any]:
    run, config, records = one.run, one.config, one.run.records
    evaluated = [record for record in records if record.test_accuracy is not None]
    best = max(evaluated, key=lambda record: record.test_accuracy or 0.0, default=None)
    clients = None if one.clients is None or one.clients.crowd is not None else asdict(one.clients)
    main = None if one.clients is None else one.clients.main_flops_per_s
    return {
        "label": run.label,
        "name": run.name + (f", seed {run.seed}" if run.seed is not None else ""),
        "framework": config.framework,
        "framework_name": display_name(config.framework, run.look),
        "pooled": run.pools_data,
        "seed": run.seed,
        "folder": str(one.path),
        "status": one.status,
        "words": describe(config, run.look, main) + ([f"Note: {one.plan_note}."] if one.plan_note else []),
        "subset": next(iter(subset_notes([("", config.network.sample_scale)])), None),
        "environment": one.environment,
        "policy": config.allocation.policy,
        "main_hz": config.network.main_hz,
        "measured": config.network.kind == "measured",
        "tau_s": config.train.tau_s,
        "num_clients": config.fleet.num_clients,
        "planned_rounds": config.train.rounds,
        "num_rounds": len(records),
        "sim_time_s": run.sim_time_s,
        "wall_s": sum(record.wall_s for record in records),
        "best_accuracy": run.best("test_accuracy"),
        "best_round": best.round if best else None,
        "last_accuracy": run.last("test_accuracy"),
        "drops": run.drops,
        "left_out": run.left_out,
        "bytes": run.bytes,
        "recall": shorts([np.nan if r is None else r for r in evaluated[-1].recall or []]) if evaluated else [],
        "clients": None
        if clients is None
        else {k: v if k == "class_names" or not isinstance(v, list) else v[:MAX_CLIENTS] for k, v in clients.items()},
        "crowd": None if one.clients is None else one.clients.crowd,
        "quantiles": QUANTILES,
        "counts": client_counts(records),
        "gantt_every": every,
        "rounds": round_columns(records, list(run.bytes), every, run.pools_data),
    }


def _series(label: str, slot: int, style: dict[str, Any] | None, runs: list[Run]) -> dict[str, Any]:
    curves = {
        quantity: {over: _points(label_band(runs, quantity, over)) for over in ("time", "rounds")}
        for quantity in QUANTITIES
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
    points = {name: [short(float(v), 6) for v in getattr(band, name)[at]] for name in ("x", "mean", "low", "high")}
    return points if np.isfinite(band.low).any() else {name: points[name] for name in ("x", "mean")}


def _tables(sources: Sources) -> dict[str, Any] | None:
    """What was gained in words, the comparison's tables and its notes, where there is something to compare."""
    if len(sources.runs) < 2:
        return None
    tasks = _tasks(sources)
    compared = compare([one.run for one in sources.runs], sources.target, paired=len(tasks) == 1)
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
