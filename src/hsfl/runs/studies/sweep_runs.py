"""A sweep: runs, or timings without training, for every combination of some settings' values.

The runs of a point lie as those of a comparison, in `OUT/<point>/<folder>/seed-<n>`; those that are there already are not
made again. `OUT/sweep.json` says which points, contenders and seeds the folder is about, for those who read it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.config import RunConfig, flatten, parse_stored, with_changes
from hsfl.data.registry import Dataset
from hsfl.errors import InputError
from hsfl.files import clear_scratch, read_json, read_record, write_json
from hsfl.frameworks import find_framework
from hsfl.models.units import SplitModel
from hsfl.planning.fair_defaults import without_auto
from hsfl.planning.rounds.allocators import policy_of
from hsfl.runs.budget import charged_s, fits_budget
from hsfl.runs.checks.clock_notes import clock_notes
from hsfl.runs.client_data import read_data
from hsfl.runs.loop import make_clock
from hsfl.runs.prepare import prepare
from hsfl.runs.progress import Observer
from hsfl.runs.run_folder.environment import check_inputs, input_digests
from hsfl.runs.run_folder.folder import TIMING, RunFolder, holds_something, run_path
from hsfl.runs.run_folder.provenance import check_plugins
from hsfl.runs.run_folder.records import ContenderRecord, ContendersRecord
from hsfl.runs.studies.compare_runs import run_piece, with_one_fleet
from hsfl.runs.studies.contender_names import settle_contenders
from hsfl.runs.studies.contenders import contender, labels_of
from hsfl.runs.studies.grid import Grid, check_contenders
from hsfl.runs.studies.run_many import ONE_SEED, ManyRuns, Piece, Show, run_all

FILE = "sweep.json"
ENDED = ("finished", "budget", "diverged")  # a run that diverged would do so again


def run_sweep(
    base: RunConfig,
    grid: Grid,
    texts: Sequence[str],
    out: Path,
    many: ManyRuns = ONE_SEED,
    plan_only: bool = False,
    target: float | None = None,
) -> None:
    """Run every contender at every point with seeds base.seed, base.seed + 1, ...

    base: the settings that all points share. grid: the points. texts: the contenders. out: the folder of the sweep.
    plan_only: choose cuts and allocate for every round, and train nothing.
    target: a value of the task's first metric, kept for the report.
    """
    show, dataset, model = many.show, many.dataset, many.model
    check_contenders(grid, texts)
    with RunFolder(out).locked():  # two sweeps with different settings would mix their runs
        stored = _check_same(out, base, grid, plan_only)
        everyone, labels = settle_contenders(grid.points[0].config, texts, stored.contenders, out), labels_of(texts)
        clear_scratch(out)
        seeds = range(base.seed, base.seed + many.num_seeds)
        contenders = {text: everyone[label] for text, label in zip(texts, labels)}
        pieces = [piece for seed in seeds for piece in _pieces(grid, contenders, out, seed, dataset, model)]
        is_done = _is_timed if plan_only else _has_ended
        if not plan_only:
            first = [piece for piece in pieces if piece.config.seed == base.seed and not is_done(piece)]
            _check_fit(first, show, dataset, model)
        about = {"labels": labels, "contenders": {label: asdict(record) for label, record in everyone.items()}}
        write_json(out / FILE, about | _sweep_record(base, grid, seeds, plan_only) | {"target": target})
        show.says(_what_follows(base, plan_only))
        work = partial(_time_piece if plan_only else run_piece, dataset=dataset, model=model)
        run_all(pieces, work, is_done, many.jobs, show)


def _pieces(
    grid: Grid,
    contenders: Mapping[str, ContenderRecord],
    out: Path,
    seed: int,
    dataset: Dataset | None,
    model: SplitModel | None,
) -> list[Piece]:
    """The runs of one seed. contenders: by the text that asks for each."""
    pieces = []
    for point in grid.points:
        seen = None if dataset is None else read_data(point.config, dataset)
        seeded = with_one_fleet(with_changes(point.config, [f"seed={seed}"]), list(contenders), seen, model)
        for text, settled in contenders.items():
            path = run_path(out / point.folder, settled.folder, seed)
            name = f"{settled.name}, {point.name}, seed {seed}"
            pieces.append(Piece(name, f"{settled.name} {point.name}", without_auto(contender(seeded, text)), path))
    return pieces


def _check_fit(pieces: Sequence[Piece], show: Show, dataset: Dataset | None, model: SplitModel | None) -> None:
    """Refuse cuts, models and links that do not fit, before anything is trained. Cuts that are searched always fit, and take long
    to find, so the deepest stand in for them."""
    show.says(f"checking the settings of {len(pieces)} runs") if len(pieces) > 1 else None
    for piece in pieces:
        try:
            prepare(_with_cuts_unsearched(piece.config), dataset, model)
        except InputError as error:
            raise InputError(f"{piece.name}: {error}") from None


def _with_cuts_unsearched(config: RunConfig) -> RunConfig:
    """The config with the deepest cuts in the place of those that would be searched."""
    fleet, deepest = config.fleet, {}
    if fleet.cuts in ("planned", "fastest") and not policy_of(config).chooses_cuts:
        deepest["cuts"] = "max_cut"
    if fleet.one_cut == "fastest":
        deepest["one_cut"] = "max_cut"
    return config.model_copy(update={"fleet": fleet.model_copy(update=deepest)})


def _what_follows(base: RunConfig, plan_only: bool) -> str:
    rounds = f"{base.train.rounds} round{'s' if base.train.rounds > 1 else ''}"
    are = "are" if base.train.rounds > 1 else "is"
    work = f"{rounds} {are} timed and nothing is trained" if plan_only else f"every run makes {rounds}"
    if base.train.budget_s is not None:
        return f"{work}, or as many as {base.train.budget_s:g} simulated seconds allow (train.budget_s)"
    return work + ("" if plan_only else "; with train.budget_s all have the same simulated seconds")


def _sweep_record(base: RunConfig, grid: Grid, seeds: Sequence[int], plan_only: bool) -> dict[str, Any]:
    return {
        "fields": list(grid.fields),
        "points": [{"values": list(p.values), "name": p.name, "folder": p.folder} for p in grid.points],
        "seeds": list(seeds),
        "plan_only": plan_only,
        "config": base.model_dump(mode="json"),
        "inputs": input_digests(base),
    }


def _check_same(out: Path, base: RunConfig, grid: Grid, plan_only: bool) -> ContendersRecord:
    """The contenders of the sweep in a folder. A sweep with other fields or settings is refused; further values, contenders and seeds
    may join it."""
    path = out / FILE
    if not path.exists():
        if holds_something(out):
            raise InputError(f"{out} already holds something else; choose another folder (--out)")
        return ContendersRecord()
    stored = read_json(path)
    if not isinstance(stored, dict) or not all(isinstance(stored.get(name), dict) for name in ("config", "inputs")):
        raise InputError(f"{path} is damaged; delete {out}, or choose another --out")
    fields = stored.get("fields")
    if fields != list(grid.fields):
        was = " and ".join(map(str, fields)) if isinstance(fields, list) else "something else"
        raise InputError(f"{out} holds a sweep of {was}, not of {' and '.join(grid.fields)}; choose another --out")
    if stored.get("plan_only") is not plan_only:
        other = "without --plan-only" if plan_only else "with --plan-only"
        raise InputError(f"{out} holds a sweep {other}; choose another --out")
    old, new = (_settings(config, grid) for config in (parse_stored(stored["config"], path), base))
    if different := [name for name in new | old if old.get(name) != new.get(name)]:
        raise InputError(f"{out} holds a sweep with another {different[0]}; put it back, or choose another --out")
    check_inputs(stored["inputs"], base, out)
    record: ContendersRecord = read_record(path, ContendersRecord)
    return record


def _settings(config: RunConfig, grid: Grid) -> dict[str, Any]:
    """What all points share."""
    flat = flatten(config.model_dump(mode="json"))
    return {name: value for name, value in flat.items() if name not in grid.fields}


def _has_ended(piece: Piece) -> bool:
    check_plugins(piece.path, piece.config)
    return RunFolder(piece.path).ended().status in ENDED


def _is_timed(piece: Piece) -> bool:
    return (piece.path / TIMING).exists()


def _time_piece(
    piece: Piece, observer: Observer, dataset: Dataset | None = None, model: SplitModel | None = None
) -> None:
    """Write how long every round of the run takes, and whom it keeps; the clock is the run's own."""
    config = piece.config
    bench = prepare(config, dataset, model)
    framework = find_framework(config.framework)(bench.task)
    clock = make_clock(bench, framework)
    rounds: dict[str, list[Any]] = {"round_s": [], "kept": [], "dropped": [], "left_out": [], "gap": []}
    status, start_s = "finished", 0.0
    observer.run_starts(config, framework.cuts, 0)
    for note in clock_notes(bench, framework, clock):
        observer.warns(note)
    for r in range(config.train.rounds):
        timeline, allocation_note = clock.round(r, clock.chosen(r))
        if not fits_budget(clock, r, start_s):
            status = "budget"
            break
        rounds["round_s"].append(charged_s(clock, r))
        start_s += charged_s(clock, r)
        rounds["gap"].append(allocation_note.get("gap"))
        for name, clients in (("kept", timeline.kept), ("dropped", timeline.dropped), ("left_out", ~timeline.started)):
            rounds[name].append(int(np.count_nonzero(clients)))
    observer.run_ends()
    about: dict[str, Any] = {"framework": config.framework, "policy": config.allocation.policy, "status": status}
    about |= {"cuts": [int(cut) for cut in framework.cuts]}
    clear_scratch(piece.path)
    write_json(piece.path / TIMING, about | {"config": config.model_dump(mode="json")} | rounds)
