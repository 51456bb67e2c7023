"""One training, several clocks: a run whose learning is that of another run, timed for itself.

HSFL with any cuts, SplitFed V1, FSL and FL learn the same in a round with the same clients (`tests/laws`). So where nobody is
dropped, one of them is trained and the others take over what it learned, round by round, under their own clocks.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from hsfl import plugins
from hsfl.codec_table import link_text
from hsfl.config import OptionsConfig, RunConfig, flatten
from hsfl.config.options import OF_MODELS
from hsfl.data.registry import Dataset
from hsfl.files import write_json
from hsfl.framework_table import METHODS
from hsfl.frameworks import find_framework
from hsfl.frameworks.framework import Framework, RoundResult
from hsfl.models.units import SplitModel
from hsfl.planning.rounds.round_clock import RoundClock
from hsfl.planning.rounds.straggler import explain_straggler
from hsfl.runs.budget import budget_too_short_note, count_rounds_within_budget, fits_budget
from hsfl.runs.checks.clock_notes import clock_notes
from hsfl.runs.loop import make_clock
from hsfl.runs.prepare import Bench, prepare
from hsfl.runs.progress import Observer
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.run_folder.records import Averaged, CutsRecord, RoundRecord
from hsfl.runs.run_folder.round_tables import write_tables
from hsfl.runs.run_folder.write_records import clients_record, make_round_record, summarise
from hsfl.training.evaluation import Quality
from hsfl.training.link import LinkBytes
from hsfl.training.norm_statistics import NormLayers, num_seen
from hsfl.training.order_statistics import MEAN

TRACE = "trace.json"  # says whose training a run took over
TIMED = (
    "framework",
    "allocation.",
    "fleet.cuts",
    "fleet.one_cut",
    "engine.",
    "log.",
    *(
        f"options.{name}." for name in OptionsConfig.model_fields if name not in OF_MODELS
    ),  # where they change more, `num_rounds_if_shared` says so
)  # change the clock alone


def learning_key(config: RunConfig) -> str | None:
    """What decides what a run learns, as text: runs with the same text learn the same. None where no other run is known
    to learn the same."""
    row = METHODS.get(config.framework)
    if row is None or not row.built_in or not row.copy_per_client or config.train.tau_s is not None:
        return None
    if link_text(config.link) is not None:
        return None  # what a codec changes depends on the cut
    if config.attack.kind is not None:
        return None  # an attacker changes what it holds, which is another part of the model where its cut is another
    policies = tuple(f"options.{name}." for kind, name in plugins.REGISTERED if kind == "policy")
    flat = flatten(config.model_dump(mode="json"))
    return json.dumps(
        {name: value for name, value in flat.items() if not name.startswith(TIMED + policies)}, sort_keys=True
    )


def num_rounds_if_shared(bench: Bench) -> int | None:
    """How many rounds a run will make; None where no other run learns the same, since clients keep their heads or stay
    away."""
    config = bench.task.config
    framework = find_framework(config.framework)(bench.task)
    if not framework.extras().heads_travel or framework.extras().away:
        return None
    return count_rounds_within_budget(make_clock(bench, framework))


def take_over(
    trained: Path,
    config: RunConfig,
    out: Path,
    observer: Observer | None = None,
    dataset: Dataset | None = None,
    model: SplitModel | None = None,
    cuts: CutsRecord | None = None,
) -> None:
    """Write the folder `out` of a run of `config` that learns as the run in the folder `trained` did; no model is kept.

    The run ends with its budget, or with the last round that was trained. cuts: the cuts that were chosen for it
    before.
    """
    observer, folder, source = observer or Observer(), RunFolder(out), RunFolder(trained)
    with folder.locked():
        if folder.config_path.exists():
            folder.begin_anew()  # taking over takes seconds, so a stopped run begins anew
        bench = prepare(config, dataset, model, cuts)
        framework = find_framework(config.framework)(bench.task)
        clock = make_clock(bench, framework)
        notes = [*bench.notes, *clock_notes(bench, framework, clock)]
        records, status = _timed(bench, framework, clock, source)
        folder.create(config)
        folder.write_cuts(bench.cuts)
        folder.write_task(bench.task.goal.row)
        write_json(folder.clients_path, asdict(clients_record(bench, framework.cuts, notes)))
        write_json(out / TRACE, {"trained_as": source.config().framework, "rounds": len(records)})
        observer.run_starts(config, framework.cuts, 0)
        for note in notes:
            observer.warns(note)
        if not records and status == "budget":
            observer.warns_of_run(budget_too_short_note(clock))
        for record in records:
            folder.append(record)
            observer.round_ends(record)
        observer.run_ends()
        write_tables(out, records)
        write_json(folder.summary_path, asdict(summarise(folder, config, status)))


def _timed(bench: Bench, framework: Framework, clock: RoundClock, source: RunFolder) -> tuple[list[RoundRecord], str]:
    """What was learned in each round, with the seconds and bytes of the framework, and how the run ends: with its rounds, with its
    budget, or where the training that it takes over ended."""
    config, start_s = bench.task.config, 0.0
    records, learned = list[RoundRecord](), source.rounds()
    for index in range(config.train.rounds):
        chosen = clock.chosen(index)
        timeline, allocation_note = clock.round(index, chosen)
        if not fits_budget(clock, index, start_s):
            return records, "budget"
        if index == len(learned):
            return records, source.ended().status
        row = learned[index]
        kept = np.flatnonzero(timeline.kept).tolist()
        assert row.num_kept == len(kept), "the same clients, and nobody dropped"
        assert row.crowd is not None or row.kept == kept, "the same clients, and nobody dropped"
        quality = None
        if row.test_loss is not None:
            recall = tuple(row.recall or ())
            quality = Quality(row.test_loss, row.test_accuracy, row.balanced_accuracy, recall, row.metrics)
        num_bytes, averaged, estimation_s = round_bytes(bench, framework.cuts, index, kept, chosen), None, 0.0
        if row.averaged is not None:
            averaged, estimation_s = _averaged_quality(row.averaged), clock.estimation_s(index, chosen)
            num_bytes.merge(_estimation_bytes(bench, framework, kept))
        result = RoundResult(row.train_loss, row.num_samples, num_bytes)
        record = make_round_record(
            framework, bench.task, index, start_s, timeline, allocation_note, result, quality, row.wall_s,
            why=explain_straggler(clock, index, chosen), averaged=averaged, estimation_s=estimation_s,
        )  # fmt: skip
        records.append(replace(record, no_quality=row.no_quality))
        start_s = record.sim_time_s
    return records, "finished"


def _averaged_quality(row: Averaged) -> Quality:
    return Quality(row["test_loss"], row["test_accuracy"], row["balanced_accuracy"], ())


def _estimation_bytes(bench: Bench, framework: Framework, kept: Sequence[int]) -> LinkBytes:
    """The bytes of an estimation of BatchNorm's statistics by these clients, from sizes alone."""
    task, total, train = bench.task, framework.norm_swapped(), bench.task.config.train
    layers = NormLayers.of(task.model)
    for k in kept:
        cut, seen = framework.cuts[k], num_seen(task.feed.num_samples(k), train.batch_size, train.norm_batches)
        up = round(seen * float(bench.world.cost.smashed_bits[cut]) / 8)
        total.merge(LinkBytes(client_main_up=up, client_edge_up=layers.num_bytes(0, cut)))
    return total


def round_bytes(
    bench: Bench, cuts: Sequence[int], round_index: int, kept: Sequence[int], chosen: Sequence[int]
) -> LinkBytes:
    """The bytes of a round (0, 1, ...) on each link, from sizes alone. cuts: [K]. kept: the clients that train. chosen: the clients
    that were to take part; either these or all clients receive the model (`train.receivers`)."""
    task, cost = bench.task, bench.world.cost
    receivers = chosen if task.config.train.receivers == "chosen" else range(len(cuts))
    heads = {cut: task.initial[0:cut].num_bytes for cut in set(cuts)}
    samples = task.trained_samples(kept, round_index)
    up = sum(number * cost.smashed_bits[cuts[k]] for k, number in samples.items()) / 8
    down = sum(number * cost.gradient_bits[cuts[k]] for k, number in samples.items()) / 8
    common = task.initial[min(cuts) : max(cuts)]  # units that both servers hold
    swapped = 2 * 8 * (common.floats.numel() + common.ints.numel() + common.stop - common.start)  # sums, and weights
    if task.config.train.average != MEAN:
        swapped = len(kept) * common.num_bytes  # each server sends what the other lacks
    return LinkBytes(
        round(up), round(down), sum(heads[cuts[k]] for k in kept), sum(heads[cuts[k]] for k in receivers), swapped
    )
