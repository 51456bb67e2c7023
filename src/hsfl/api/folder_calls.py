"""`hsfl.open`: the results that a folder holds."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hsfl.api.run_results import ComparisonResult, Result, SweepResult
from hsfl.files import read_record
from hsfl.report.compared_runs import SWEEP_FILE, ComparisonRecord, run_folders
from hsfl.report.comparison_summary import read_comparison
from hsfl.report.page.page import PAGE_NAME
from hsfl.report.page.page_sources import refuse_empty
from hsfl.report.sweep_results import read_sweep
from hsfl.runs.from_plan import PLAN_FILE
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.run_folder.write_records import summarise

if TYPE_CHECKING:
    from hsfl.api.plan_calls import PlanResult


def open_folder(path: str | Path) -> "Result | ComparisonResult | SweepResult | PlanResult":
    """The results in a folder: what `hsfl.run`, `hsfl.compare`, `hsfl.sweep` or `hsfl.plan` gave, or the commands wrote there.

    Nothing that the folder names is loaded or run. A run that is still under way is shown as far as it is.
    """
    folder = Path(path)
    if (folder / SWEEP_FILE).is_file():
        return SweepResult(**vars(read_sweep(folder)), folder=folder)
    if (folder / "config.json").is_file():
        return _open_run(folder)
    if run_folders(folder):
        return _open_comparison(folder)
    if (folder / PLAN_FILE).is_file():
        from hsfl.api.plan_calls import open_plan  # here, because it loads numba, which is an extra

        return open_plan(folder)
    raise refuse_empty(folder)


def _open_run(path: Path) -> Result:
    folder, page = RunFolder(path), path / PAGE_NAME
    ended = folder.ended()
    went_on = ended.rounds is not None and ended.rounds < len(folder.rounds())  # since the summary was written
    summary = summarise(folder, folder.config(), "unfinished" if went_on else ended.status)
    return Result(**asdict(summary), folder=path, report=page if page.is_file() else None)


def _open_comparison(folder: Path) -> ComparisonResult:
    """The comparison with the target and in the order that it was asked for, as far as comparison.json says."""
    record, file = ComparisonRecord(), folder / "comparison.json"
    if file.is_file():
        record = read_record(file, ComparisonRecord)
    present = {label for label, _ in run_folders(folder)}
    asked = [label for label in record.labels if label in present]
    return ComparisonResult(**vars(read_comparison(folder, record.target, asked or None)), folder=folder)
