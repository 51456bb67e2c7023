"""Writes the run folder of a deployment: the same files as a simulation, with measured seconds beside the modelled ones."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import cast

from hsfl.deploy.main.coded_judgement import Judgement
from hsfl.deploy.main.cut_planner import CutPlanner, RoundPlan
from hsfl.deploy.main.main_round import Tail
from hsfl.deploy.main.roster import Roster
from hsfl.deploy.metrics import PHASES
from hsfl.deploy.model_kit import ModelKit
from hsfl.deploy.wire.versions import DeviceVersions, own_versions, version_notes
from hsfl.files import write_json
from hsfl.formats import DIGITS, all_rounded
from hsfl.models.state import UnitState
from hsfl.runs.run_folder.checkpoint import save_tensors
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.run_folder.records import AllocationNote, ClientsRecord, RoundRecord
from hsfl.runs.run_folder.round_tables import write_tables
from hsfl.runs.run_folder.write_records import Summary, coded_note, finite_quality, phase_times, summarise
from hsfl.training.link import LinkBytes, Losses
from hsfl.training.step import learning_rate


def measured_round_record(
    kit: ModelKit,
    round: int,
    before_s: float,
    plan: RoundPlan,
    tails: dict[int, Tail],
    kept: Sequence[int],
    measured: dict[int, dict[str, float]],
    sent: LinkBytes,
    judgement: Judgement,
) -> RoundRecord:
    """The record of a round that has ended, but for the seconds of the whole round and of its end, since it is not written down yet.
    before_s: modelled seconds before this round. measured: seconds by seat, then by phase."""
    count, losses = kit.config.fleet.num_clients, _round_losses([tails[seat] for seat in kept])
    quality, no_quality = finite_quality(judgement.quality)
    return RoundRecord(
        round=round + 1,
        framework=kit.config.framework,
        sim_time_s=before_s + plan.timeline.round_s,
        round_s=plan.timeline.round_s,
        wall_s=0.0,
        num_samples=losses.num_samples,
        train_loss=losses.mean,
        test_loss=quality.loss if quality else None,
        test_accuracy=quality.accuracy if quality else None,
        balanced_accuracy=quality.balanced_accuracy if quality else None,
        recall=list(quality.recall) if quality else None,
        lr=learning_rate(kit.config.train, round),
        cuts=list(plan.cuts),
        codecs=list(plan.codecs) or None,
        coded=coded_note(judgement.coded),
        started=sorted(tails),
        kept=list(kept),
        dropped=sorted(tails.keys() - set(kept)),
        straggler=plan.timeline.straggler if plan.timeline.straggler >= 0 else None,
        waiting_s=all_rounded(plan.timeline.waiting_s, DIGITS),
        phases=phase_times(plan.timeline),
        allocation=cast(AllocationNote, plan.allocation_note),
        bytes=asdict(sent),
        no_quality=no_quality,
        weights=_weights(tails, count),
        modelled_ending_s=plan.timeline.ending_s or None,
        measured={phase: [measured[k][phase] if k in measured else None for k in range(count)] for phase in PHASES},
    )


def _weights(tails: dict[int, Tail], count: int) -> list[int] | None:
    """What each client counts in the average, [K]; None where everybody counts what it holds."""
    if all(tail.counts_as == tail.num_samples for tail in tails.values()):
        return None
    return [tails[seat].counts_as if seat in tails else 0 for seat in range(count)]


def _round_losses(tails: Sequence[Tail]) -> Losses:
    """The losses of the round: those that the main server computed, and those of clients that hold all units."""
    losses = Losses()
    for tail in tails:
        assert tail.end is not None
        losses.parts.append(tail.loss_total)
        losses.num_samples += tail.end.num_samples
    return losses


def write_clients(
    folder: RunFolder,
    planner: CutPlanner,
    plan: RoundPlan,
    roster: Roster,
    kit: ModelKit,
    classes: Sequence[str],
    evaluated_by: str,
    edge: DeviceVersions,
    notes: Sequence[str] = (),
) -> None:
    """Write clients.json, from what the clients said of themselves; a seat that nobody has taken has no samples.

    evaluated_by: whose test samples judge the model, as the main server's file says. edge: the edge server's versions. notes: what the
    page says besides the versions that differ."""
    seats = range(kit.config.fleet.num_clients)
    known = [roster.known.get(seat) for seat in seats]
    counts = [ready.class_counts if ready else [0] * len(classes) for ready in known]
    flops = [float(planner.measured[k].flops_per_s) if k in planner.measured else 0.0 for k in seats]
    record = ClientsRecord(
        num_samples=[sum(client_counts) for client_counts in counts],
        class_counts=counts,
        class_names=list(classes),
        cuts=list(plan.cuts),
        max_cut=[planner.deepest(ready.measured.memory_bits if ready else None) for ready in known],
        cpu_hz=flops,
        max_power_w=[None] * len(seats),
        input_shape=list(kit.input_shape),
        names=roster.labels(),
        flops_per_s=flops,
        main_flops_per_s=planner.main_flops_per_s,
        notes=[*notes, *version_notes({"the edge server": edge} | roster.versions(), own_versions())],
        versions=[asdict(ready.versions) if ready else None for ready in known],
        evaluated_by=evaluated_by,
    )
    write_json(folder.clients_path, asdict(record))


def save_model(folder: RunFolder, whole: UnitState, best: bool) -> None:
    save_tensors(folder.best_model_path if best else folder.last_model_path, whole.named())


def write_end(folder: RunFolder, kit: ModelKit, status: str) -> Summary:
    """Write the summary and the tables of a deployment that has ended."""
    summary = summarise(folder, kit.config, status)
    write_tables(folder.path, folder.rounds())
    write_json(folder.summary_path, asdict(summary))
    return summary
