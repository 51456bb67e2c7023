"""The folders of a page, read into `Sources`: runs with their labels, plans and sweeps."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.files import read_record
from hsfl.report.compared_runs import (
    SWEEP_FILE,
    CheckedPlan,
    ComparisonRecord,
    PlanRecord,
    Run,
    TraceRecord,
    read_contenders,
    read_run,
    run_folders,
    usual_order,
)
from hsfl.report.sweep_results import Sweep, read_sweep
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.run_folder.records import ClientsRecord, ContenderRecord

WAY_OUT = "give the folder of a run, of a comparison, of a sweep, or of a plan that was kept with --out"
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
    trained_as: str | None  # the framework whose training the run took over; None if it trained itself
    plan_note: str | None  # a note, if a time limit stopped the search for cuts

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
    found_runs: list[tuple[Path | None, PageRun]] = []  # each with the folder of its comparison
    plans: list[tuple[str, PlanRecord]] = []
    targets: list[float | None] = []
    sweeps: list[tuple[str, Sweep]] = []
    for path in dict.fromkeys(map(Path, paths)):
        num_before = len(found_runs) + len(plans)
        if (path / SWEEP_FILE).is_file():
            sweeps.append((str(path), read_sweep(path)))
            continue
        if (path / "config.json").is_file():
            found_runs.append((None, _read_page_run(path, "")))
        run_paths = {key: run for key, run in run_folders(path).items() if (run / "config.json").is_file()}
        comparison, contenders = ComparisonRecord(), read_contenders(path) if run_paths else {}
        if run_paths and (path / "comparison.json").is_file():
            comparison = read_record(path / "comparison.json", ComparisonRecord)
            targets.append(comparison.target)
        frameworks = {label: contenders[label].framework if label in contenders else None for label, _ in run_paths}
        for label in _label_order(frameworks, list(comparison.labels)):
            paths_of_label = [run_path for key, run_path in sorted(run_paths.items()) if key[0] == label]
            found_runs += [(path, _read_page_run(place, label, contenders.get(label))) for place in paths_of_label]
        if (path / "plan.json").is_file():
            plans.append((str(path), read_record(path / "plan.json", CheckedPlan)))
        if len(found_runs) + len(plans) == num_before:
            raise refuse_empty(path)
    singles = [page_run for comparison_path, page_run in found_runs if comparison_path is None]
    single_labels = _single_labels(singles, alone=len(singles) == len(found_runs))
    comparison_names = _folder_names([path for path, _ in found_runs if path is not None])
    runs = []
    for comparison_path, page_run in found_runs:
        if comparison_path is None:
            label = single_labels[page_run.path]
        elif len(comparison_names) > 1:
            label = f"{page_run.run.label},{comparison_names[comparison_path]}"
            contender = page_run.run.contender
            if contender is not None:
                contender = replace(contender, name=f"{contender.name}, {comparison_names[comparison_path]}")
                page_run = replace(page_run, run=replace(page_run.run, contender=contender))
        else:
            label = page_run.run.label
        runs.append(replace(page_run, run=replace(page_run.run, label=label)))
    target = next((target for target in targets if target is not None), None)
    return Sources(runs, plans, target, tuple(sweeps))


def refuse_empty(path: Path) -> NothingYet:
    """The error for a folder that holds nothing to show; it names runs below the folder."""
    missing = "does not exist" if not path.exists() else "holds no run, comparison or plan"
    run_list = ", ".join(_runs_below(path))
    return NothingYet(f"{path} {missing}; {f'there are runs below it: {run_list}' if run_list else WAY_OUT}")


def _label_order(labels: Mapping[str, str | None], asked: list[str]) -> list[str]:
    """The labels in the order in which the comparison was asked for, then labels that it does not name, from HSFL to CL. labels: with
    the framework of each, where it is known."""
    unasked = sorted(labels, key=lambda label: (-usual_order(label, labels[label])[0], label))
    return [*(label for label in asked if label in labels), *(label for label in unasked if label not in asked)]


def _runs_below(path: Path, max_folders: int = 3) -> list[str]:
    """A few folders of runs below this one, the nearest first."""
    folders: list[str] = []
    for level in range(1, DEEPEST + 1):
        configs = sorted(path.glob("*/" * level + "config.json"))
        folders += [str(config.parent) for config in configs if (config.parent / "rounds.jsonl").is_file()]
        if len(folders) >= max_folders:
            break
    return folders[:max_folders]


def _read_page_run(path: Path, label: str, contender: ContenderRecord | None = None) -> PageRun:
    folder = RunFolder(path)
    config = folder.config()
    run = read_run(path, label, config.seed, contender)
    num_rounds = folder.ended().rounds
    if num_rounds is not None and num_rounds < len(run.records):
        run = replace(run, status="unfinished")  # resumed
    environment = asdict(folder.environment()) if folder.environment_path.exists() else {}
    environment |= {"plugins": run.look.files} if run.look is not None else {}
    trace = path / "trace.json"
    trained_as = read_record(trace, TraceRecord).trained_as if trace.exists() else None
    cuts = folder.cuts()
    return PageRun(run, path, config, environment, folder.clients(), trained_as, None if cuts is None else cuts.note)


def _folder_names(paths: Sequence[Path]) -> dict[Path, str]:
    """A name for each folder: its last name or, where two folders share it, what the paths do not have in common."""
    resolved = {path: path.resolve() for path in paths}
    last_names = [path.name for path in resolved.values()]
    if len(set(last_names)) == len(last_names):
        return {path: full_path.name for path, full_path in resolved.items()}
    common = set.intersection(*(set(full_path.parts) for full_path in resolved.values()))
    names = {
        path: "/".join(folder for folder in full_path.parts if folder not in common)
        for path, full_path in resolved.items()
    }
    are_distinct = len(set(names.values())) == len(names) and all(names.values())
    return names if are_distinct else {path: str(path) for path in paths}


def _single_labels(page_runs: list[PageRun], alone: bool) -> dict[Path, str]:
    """Labels by folder, for runs that belong to no comparison.

    Runs of one config with different seeds share a label, the framework's name. The folder's name is added where two configs have
    the same framework, or where these runs are not alone on the page.
    """
    groups: dict[tuple[str, int], list[PageRun]] = {}
    for page_run in page_runs:
        settings = page_run.config.model_dump(mode="json", exclude={"seed", "log"})
        key = json.dumps(settings, sort_keys=True)
        num_same_seed = sum(
            other_key == key and any(other.run.seed == page_run.run.seed for other in runs)
            for (other_key, _), runs in groups.items()
        )
        groups.setdefault((key, num_same_seed), []).append(page_run)
    frameworks = [runs[0].config.framework for runs in groups.values()]
    names = _folder_names([runs[0].path for runs in groups.values()])
    labels: dict[Path, str] = {}
    for runs in groups.values():
        framework = runs[0].config.framework
        is_clear = alone and frameworks.count(framework) == 1
        label = framework if is_clear else f"{framework},{names[runs[0].path]}"
        labels |= {page_run.path: label for page_run in runs}
    return labels
