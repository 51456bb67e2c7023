"""What the folders of a page hold: runs with their labels, plans and sweeps."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.files import read_record
from hsfl.report.compared_runs import (
    CheckedPlan,
    ComparisonRecord,
    PlanRecord,
    Run,
    TraceRecord,
    read_run,
    run_places,
    usual_order,
)
from hsfl.report.sweep_results import FILE as SWEEP_FILE
from hsfl.report.sweep_results import Sweep, read_sweep
from hsfl.runs.folder import RunFolder
from hsfl.runs.records import ClientsRecord

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
