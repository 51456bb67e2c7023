"""Several frameworks in one world: same fleet, same draws of the channel, same data and first weights, one budget.

A contender is a framework's name, with changes of its own where wanted: `fl,options.fl.needs_storage=true`. Its runs
lie in `OUT/<contender>/seed-<n>`; runs that are there already are not run again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hsfl.config import RunConfig, flatten, parse_config, with_changes
from hsfl.data.datasets import Dataset
from hsfl.errors import InputError
from hsfl.files import read_json, write_json
from hsfl.frameworks import find_framework
from hsfl.runs.contenders import contender
from hsfl.runs.folder import RunFolder, check_inputs, input_digests, run_path
from hsfl.runs.loop import Observer, choose_clients, make_clock, run
from hsfl.runs.many import Piece, Show, run_all
from hsfl.runs.prepare import prepare
from hsfl.runs.provenance import check_plugins


def compare(
    base: RunConfig,
    labels: Sequence[str],
    out: Path,
    num_seeds: int = 1,
    jobs: int = 1,
    show: Show | None = None,
) -> RunConfig:
    """Run every contender with seeds base.seed, base.seed + 1, ...; returns the base with its budget filled in.

    jobs: how many runs are made side by side, each in a process of its own.
    """
    show = show or Show()
    if len(set(labels)) < len(labels):
        raise InputError(f"a contender stands twice in {', '.join(labels)}; name each once")
    for label in labels:
        contender(base, label)
    stored = _stored(out)
    first = with_one_fleet(base, labels)
    for label in labels[base.train.budget_s is None :]:
        prepare(contender(first, label))  # so that cuts that do not fit cost no training
    origin = "train.budget_s"
    if base.train.budget_s is None:
        budget_s = stored["config"]["train"]["budget_s"] if stored else _budget_s(contender(first, labels[0]))
        rounds = f"{base.train.rounds} round{'s' if base.train.rounds > 1 else ''}"
        origin = f"what {labels[0]} needs for {rounds} with seed {base.seed}; train.budget_s sets another"
        origin = f"as {out} began with" if stored else origin
        base = with_changes(base, [f"train.budget_s={budget_s!r}"])
    if stored:
        _check_same(stored, base, out)
    about = {"labels": list(labels), "num_seeds": num_seeds, "config": base.model_dump(mode="json")}
    write_json(out / "compare.json", about | {"inputs": input_digests(base)})
    show.says(f"every run has {base.train.budget_s:.6g} simulated seconds ({origin})")
    pieces = []
    for seed in range(base.seed, base.seed + num_seeds):
        seeded = with_one_fleet(with_changes(base, [f"seed={seed}"]), labels)
        for label in labels:
            config, path = contender(seeded, label), run_path(out, label, seed)
            pieces.append(Piece(f"{label}, seed {seed}", label, config, path))
    run_all(pieces, run_piece, has_ended, jobs, show)
    return base


def run_piece(piece: Piece, observer: Observer) -> None:
    run_or_resume(piece.config, piece.path, observer)


def has_ended(piece: Piece) -> bool:
    """Whether its run is there and needs nothing more."""
    check_plugins(piece.path, piece.config)
    return _has_ended(RunFolder(piece.path))


def _has_ended(folder: RunFolder) -> bool:
    return folder.summary_path.exists() and read_json(folder.summary_path)["status"] in ("finished", "budget")


def with_one_fleet(base: RunConfig, labels: Sequence[str]) -> RunConfig:
    """A drawn device holds explicit cuts, so a contender's own would change it; then the base's devices are for all."""
    fleet = base.fleet
    cuts = {fleet.cuts, *(contender(base, label).fleet.cuts for label in labels)}
    drawn = fleet.file is None and fleet.max_cut is None and fleet.storage_bits is None
    if not drawn or len(cuts) == 1 or all(isinstance(each, str) for each in cuts):
        return base
    as_drawn = with_changes(base, ["fleet.cuts=max_cut"]) if isinstance(fleet.cuts, str) else base
    return with_changes(base, [f"fleet.max_cut={prepare(as_drawn).world.fleet.max_cut.tolist()}"])


def _budget_s(config: RunConfig) -> float:
    """The simulated seconds that the first contender needs for its rounds."""
    bench = prepare(config)
    clock = make_clock(bench, find_framework(config.framework)(bench.task))
    rounds = (clock.round(r, choose_clients(config, r))[0].round_s for r in range(config.train.rounds))
    return sum(rounds) * (1 + 1e-9)  # so that rounding does not cost it the last round


def _stored(out: Path) -> dict[str, Any] | None:
    """What compare.json says of the comparison in a folder; None if it holds nothing."""
    path = out / "compare.json"
    if not path.exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out} already holds something else; choose another --out")
        return None
    stored = read_json(path)
    if not isinstance(stored, dict) or not isinstance(stored.get("config"), dict):
        raise InputError(f"{path} is damaged; delete {out}, or choose another --out")
    return stored


def _check_same(stored: dict[str, Any], base: RunConfig, out: Path) -> None:
    """Runs of another config are not mixed in."""
    before = parse_config(stored["config"], of_a_folder=True)
    old, new = (flatten(config.model_dump(mode="json")) for config in (before, base))
    if different := [name for name in new | old if old.get(name) != new.get(name)]:
        raise InputError(f"{out} holds a comparison with another {different[0]}; put it back, or choose another --out")
    check_inputs(stored.get("inputs"), base, out)


def run_or_resume(config: RunConfig, path: Path, observer: Observer, dataset: Dataset | None = None) -> None:
    """A run that may have begun or ended before; `dataset` where it is read already."""
    folder = RunFolder(path)
    check_plugins(path, config)
    if _has_ended(folder):
        return
    if run(config, path, None, observer, dataset).status == "interrupted":
        raise KeyboardInterrupt
