"""Several frameworks in one world: the same fleet, channel, data, first weights and budget of simulated seconds.

A contender is a framework's name, which settings of its own may follow, and a name before it: `Ours=hsfl,fleet.cuts=fastest`. The
runs of a contender lie in `OUT/<folder>/seed-<n>`, where `compare.json` says which folder is whose; a run that has ended is not run
again.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from hsfl.codec_table import link_text
from hsfl.config import RunConfig, flatten, parse_stored, with_changes
from hsfl.data.registry import Dataset
from hsfl.errors import InputError
from hsfl.files import clear_scratch, read_record, write_json
from hsfl.formats import count, significant
from hsfl.frameworks import find_framework
from hsfl.models.units import SplitModel
from hsfl.planning.fair_defaults import without_auto
from hsfl.planning.world import make_world
from hsfl.runs.budget import budget_for_all_rounds_s
from hsfl.runs.client_data import read_data
from hsfl.runs.loop import make_clock, train_run
from hsfl.runs.prepare import Bench, input_shape, prepare
from hsfl.runs.progress import Observer
from hsfl.runs.run_folder.environment import check_inputs, input_digests
from hsfl.runs.run_folder.folder import RunFolder, holds_something, run_path
from hsfl.runs.run_folder.provenance import check_plugins
from hsfl.runs.run_folder.records import CompareRecord, ContenderRecord, CutsRecord
from hsfl.runs.studies.contender_names import settle_contenders
from hsfl.runs.studies.contenders import contender, labels_of
from hsfl.runs.studies.run_many import ONE_SEED, ManyRuns, Piece, Show, WarningList, run_all
from hsfl.runs.studies.shared_training import learning_key, num_rounds_if_shared, take_over


def run_contenders(
    base: RunConfig,
    texts: Sequence[str],
    out: Path,
    many: ManyRuns = ONE_SEED,
    train_once: bool = False,
) -> RunConfig:
    """Run every contender with the seeds base.seed, base.seed + 1, ...; returns the base with its budget filled in.

    base: the settings that all contenders share. texts: the contenders. out: the folder of the comparison.
    train_once: of contenders that learn the same in a round (`shared_training`) only the one with most rounds is trained.
    """
    show, dataset, model = many.show, many.dataset, many.model
    labels_of(texts)
    for text in texts:
        contender(base, text)
    with RunFolder(out).locked():  # two comparisons with different settings would mix their runs
        stored = _read_compare_record(out)
        clear_scratch(out)
        seen = read_data(base, dataset)
        benches = Benches(dataset, model)
        base, contenders = _check_and_set_budget(base, texts, out, many.num_seeds, stored, show, seen, benches)
        pieces = []
        for seed in range(base.seed, base.seed + many.num_seeds):
            seeded = with_one_fleet(with_changes(base, [f"seed={seed}"]), texts, seen, model)
            for text, settled in zip(texts, contenders):
                config, path = without_auto(contender(seeded, text)), run_path(out, settled.folder, seed)
                pieces.append(Piece(f"{settled.name}, seed {seed}", settled.name, config, path))
        if train_once:
            _refuse_codecs(pieces)
        leaders = _leaders(pieces, benches) if train_once else {}
        pieces = [replace(piece, cuts=benches.cuts(piece.path)) for piece in pieces]
        trained = [piece for piece in pieces if piece.path not in leaders]
        run_all(trained, partial(run_piece, dataset=dataset, model=model), has_ended, many.jobs, show)
        for piece in pieces:
            if piece.path in leaders and not has_ended(piece):
                leader = leaders[piece.path]
                show.says(f"{piece.name} learns the same as {leader.name}, so it is only timed")
                listener = WarningList()
                take_over(leader.path, piece.config, piece.path, listener, dataset, model, piece.cuts)
                for message, of_run in listener.messages:
                    show.warns(piece, message, of_run)
    return base


class Benches:
    """Makes the benches of runs, by their folders. The cuts of a run are chosen once, however often its bench is made."""

    def __init__(self, dataset: Dataset | None, model: SplitModel | None) -> None:
        self.dataset, self.model = dataset, model
        self._cuts: dict[Path, CutsRecord] = {}

    def make(self, config: RunConfig, path: Path, ready: Dataset | None = None) -> Bench:
        """ready: the data, where they are read already."""
        bench = prepare(config, ready or self.dataset, self.model, self.cuts(path))
        self._cuts[path] = bench.cuts
        return bench

    def cuts(self, path: Path) -> CutsRecord | None:
        """The cuts that were chosen for a run, now or when it began; None where they are still to be chosen."""
        return self._cuts.get(path) or RunFolder(path).cuts()


def _check_and_set_budget(
    base: RunConfig, texts: Sequence[str], out: Path, num_seeds: int, stored: CompareRecord | None, show: Show,
    seen: Dataset, benches: Benches,
) -> tuple[RunConfig, list[ContenderRecord]]:  # fmt: skip
    """The base with its budget filled in, and the contenders; compare.json is written once everything fits. seen: the data as they
    are read."""
    origin = "train.budget_s"
    if stored:
        before_s = _settings(stored, out).train.budget_s
        if base.train.budget_s is None and before_s is not None:
            origin = f"as {out} began with"
            base = with_changes(base, [f"train.budget_s={before_s!r}"])
        _check_same(stored, base, out)
    everyone, labels = settle_contenders(base, texts, stored.contenders if stored else {}, out), labels_of(texts)
    if base.train.budget_s is None:
        rounds, name = count(base.train.rounds, "round"), everyone[labels[0]].name
        origin = f"what {name} needs for {rounds} with seed {base.seed}"
        origin += ", which favours it: the others stop up to one round earlier" if len(everyone) > 1 else ""
        origin += "; train.budget_s sets another"
    ready = benches.dataset or seen  # read once for all contenders of the first seed
    first = with_one_fleet(base, texts, seen, benches.model)
    for label, text in zip(labels, texts):  # so that cuts that do not fit cost no training
        bench = benches.make(
            without_auto(contender(first, text)), run_path(out, everyone[label].folder, base.seed), ready
        )
        if base.train.budget_s is None:
            base = with_changes(base, [f"train.budget_s={_budget_of_first_s(bench)!r}"])
    contenders = {label: asdict(record) for label, record in everyone.items()}
    about = {"labels": labels, "contenders": contenders, "num_seeds": num_seeds, "config": base.model_dump(mode="json")}
    write_json(out / "compare.json", about | {"inputs": input_digests(base)})
    show.says(f"every run has {significant(base.train.budget_s or 0.0, 6)} simulated seconds ({origin})")
    return base, [everyone[label] for label in labels]


def _refuse_codecs(pieces: Sequence[Piece]) -> None:
    """Refuse to share a training where a codec changes what is learned from cut to cut."""
    for piece in pieces:
        if (codecs := link_text(piece.config.link)) is not None:
            raise InputError(
                f"--train-once shares a training between cuts, but with {codecs} ({piece.name}) every cut learns something else; "
                "leave one of the two out"
            )


def _leaders(pieces: Sequence[Piece], benches: Benches) -> dict[Path, Piece]:
    """For each run that takes over what another one learned, that other run: of those that learn the same, the one with most
    rounds. A run whose last round the other one does not test is trained itself."""
    groups: dict[str, list[tuple[int, Piece]]] = {}
    for piece in pieces:
        if (key := learning_key(piece.config)) is not None:
            rounds = num_rounds_if_shared(benches.make(piece.config, piece.path))
            groups.setdefault(key, []).extend([] if rounds is None else [(rounds, piece)])
    leaders: dict[Path, Piece] = {}
    for group in groups.values():
        most, leader = max(group, key=lambda pair: pair[0], default=(0, None))
        for rounds, piece in group:
            tested = rounds == most or rounds % piece.config.train.eval_every == 0
            if leader is not None and piece is not leader and tested:
                leaders[piece.path] = leader
    return leaders


def run_piece(
    piece: Piece, observer: Observer, dataset: Dataset | None = None, model: SplitModel | None = None
) -> None:
    """Begin one of many runs, or go on with it."""
    run_or_resume(piece.config, piece.path, observer, dataset, model, piece.cuts)


def has_ended(piece: Piece) -> bool:
    """Whether the run of a piece is there and needs nothing more."""
    check_plugins(piece.path, piece.config)
    return _has_ended(RunFolder(piece.path))


def _has_ended(folder: RunFolder) -> bool:
    return folder.ended().status in ("finished", "budget")


def with_one_fleet(
    base: RunConfig, texts: Sequence[str], dataset: Dataset | None = None, model: SplitModel | None = None
) -> RunConfig:
    """The base with its drawn devices written down, where contenders have cuts of their own.

    A device that is drawn can hold the cuts that the config gives, so a contender's cuts would change the devices.
    """
    fleet = base.fleet
    cuts = {fleet.cuts, *(contender(base, text).fleet.cuts for text in texts)}
    drawn = fleet.file is None and fleet.max_cut is None and fleet.storage_bits is None
    if not drawn or len(cuts) == 1 or all(isinstance(setting, str) for setting in cuts):
        return base
    as_drawn = with_changes(base, ["fleet.cuts=max_cut"]) if isinstance(fleet.cuts, str) else base
    dataset = dataset or read_data(as_drawn)
    world = make_world(as_drawn, input_shape(as_drawn, dataset), dataset.num_classes, model)
    return with_changes(base, [f"fleet.max_cut={world.fleet.max_cut.tolist()}"])


def _budget_of_first_s(bench: Bench) -> float:
    """The simulated seconds that the first contender needs for its rounds."""
    config = bench.task.config
    return budget_for_all_rounds_s(make_clock(bench, find_framework(config.framework)(bench.task)))


def _read_compare_record(out: Path) -> CompareRecord | None:
    """What compare.json says of the comparison in a folder; None if the folder is empty or not there."""
    path = out / "compare.json"
    if not path.exists():
        if holds_something(out):
            raise InputError(f"{out} already holds something else; choose another folder (--out)")
        return None
    stored: CompareRecord = read_record(path, CompareRecord)
    return stored


def _settings(stored: CompareRecord, out: Path) -> RunConfig:
    return parse_stored(stored.config, out / "compare.json")


def _check_same(stored: CompareRecord, base: RunConfig, out: Path) -> None:
    """Refuse to mix runs of this base with stored runs of another base."""
    old, new = (flatten(config.model_dump(mode="json")) for config in (_settings(stored, out), base))
    if different := [name for name in new | old if old.get(name) != new.get(name)]:
        raise InputError(f"{out} holds a comparison with another {different[0]}; put it back, or choose another --out")
    check_inputs(stored.inputs, base, out)


def run_or_resume(
    config: RunConfig,
    path: Path,
    observer: Observer,
    dataset: Dataset | None = None,
    model: SplitModel | None = None,
    cuts: CutsRecord | None = None,
) -> None:
    """Begin a run or go on with it; a run that has ended is left alone.

    dataset: the data, where they are given or already read. model: a model that is given from Python. cuts: the cuts
    that were chosen for the run before.
    """
    folder = RunFolder(path)
    check_plugins(path, config)
    if _has_ended(folder):
        return
    train_run(config, path, None, observer, dataset, model, cuts)
