"""Several frameworks in one world: same fleet, same draws of the channel, same data and first weights, one budget.

A contender is a framework's name, with changes of its own where wanted: `fl,options.fl.needs_storage=true`. Its runs
lie in `OUT/<contender>/seed-<n>`; runs that are there already are not run again.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from hsfl.config import RunConfig, flatten, parse_config, with_changes
from hsfl.data.datasets import Dataset
from hsfl.errors import InputError
from hsfl.files import read_record, write_json
from hsfl.frameworks import find_framework
from hsfl.runs.contenders import contender
from hsfl.runs.folder import RunFolder, check_inputs, input_digests, run_path
from hsfl.runs.loop import Observer, choose_clients, make_clock, run
from hsfl.runs.prepare import prepare
from hsfl.runs.provenance import check_plugins
from hsfl.runs.records import CompareRecord


def compare(
    base: RunConfig,
    labels: Sequence[str],
    out: Path,
    num_seeds: int = 1,
    make_observer: Callable[[str, int], Observer] = lambda label, seed: Observer(),
) -> RunConfig:
    """Run every contender with seeds base.seed, base.seed + 1, ...; returns the base with its budget filled in."""
    if len(set(labels)) < len(labels):
        raise InputError(f"a contender stands twice in {', '.join(labels)}; name each once")
    for label in labels:
        contender(base, label)
    stored = _stored(out)
    first = _with_one_fleet(base, labels)
    for label in labels[base.train.budget_s is None :]:
        prepare(contender(first, label))  # so that cuts that do not fit cost no training
    if base.train.budget_s is None:
        budget_s = _settings(stored, out).train.budget_s if stored else _budget_s(contender(first, labels[0]))
        base = with_changes(base, [f"train.budget_s={budget_s!r}"])
    if stored:
        _check_same(stored, base, out)
    about = {"labels": list(labels), "num_seeds": num_seeds, "config": base.model_dump(mode="json")}
    write_json(out / "compare.json", about | {"inputs": input_digests(base)})
    for seed in range(base.seed, base.seed + num_seeds):
        seeded = _with_one_fleet(with_changes(base, [f"seed={seed}"]), labels)
        for label in labels:
            config = contender(seeded, label)
            run_or_resume(config, run_path(out, label, seed), make_observer(label, seed))
    return base


def _with_one_fleet(base: RunConfig, labels: Sequence[str]) -> RunConfig:
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


def _stored(out: Path) -> CompareRecord | None:
    """What compare.json says of the comparison in a folder; None if it holds nothing."""
    path = out / "compare.json"
    if not path.exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out} already holds something else; choose another --out")
        return None
    stored: CompareRecord = read_record(path, CompareRecord)
    return stored


def _settings(stored: CompareRecord, out: Path) -> RunConfig:
    try:
        return parse_config(stored.config, of_a_folder=True)
    except InputError as error:
        raise InputError(f"{out / 'compare.json'}: {error}") from None


def _check_same(stored: CompareRecord, base: RunConfig, out: Path) -> None:
    """Runs of another config are not mixed in."""
    old, new = (flatten(config.model_dump(mode="json")) for config in (_settings(stored, out), base))
    if different := [name for name in new | old if old.get(name) != new.get(name)]:
        raise InputError(f"{out} holds a comparison with another {different[0]}; put it back, or choose another --out")
    check_inputs(stored.inputs, base, out)


def run_or_resume(config: RunConfig, path: Path, observer: Observer, dataset: Dataset | None = None) -> None:
    """A run that may have begun or ended before; `dataset` where it is read already."""
    folder = RunFolder(path)
    check_plugins(path, config)
    if folder.ended().status in ("finished", "budget"):
        return
    if run(config, path, None, observer, dataset).status == "interrupted":
        raise KeyboardInterrupt
