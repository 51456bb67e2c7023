"""Fig. 1(b): a single round as a Gantt chart, and beside the paper's HSFL those of SL and SplitFed on the same fleet.

An illustration: one fleet, one round, the same at every scale. How policies compare over fleets is Figs. 4 and 5.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from hsfl.config import RunConfig, with_changes
from hsfl.errors import known_name
from hsfl.experiments.common import SCALES, Outcome, Say, Trend, claim, machine, trend_table, write_text
from hsfl.experiments.latency.latency_study import SAMPLES_PER_CLIENT, paper_base
from hsfl.files import write_csv
from hsfl.formats import all_rounded, seconds
from hsfl.framework_table import PROPOSED, method
from hsfl.network.clock import PHASES, Timeline
from hsfl.planning.cuts import choose_cuts, choose_one_cut
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.rounds.round_clock import RoundClock
from hsfl.planning.world import OPTIMIZER_STATES, World, count_batches, measured_cost, world_of
from hsfl.report.compared_runs import display_name
from hsfl.report.figure_style import save_figure
from hsfl.report.gantt import gantt_of_rounds, waiting_spans
from hsfl.report.tables import SummaryTable, markdown_rows
from hsfl.runs.run_folder.records import AllocationNote, RoundRecord

SMALL = ("fleet.num_clients=5", "fleet.cuts=planned", "fleet.one_cut=max_cut", "allocation.policy=own")
HOW = {
    "sl": "one client after another, one cut, each with the whole band and server",
    "splitfed_v1": "in parallel, one cut, everything divided evenly",
    "hsfl": "in parallel, a cut for each client, optimised allocation",
}
TOGETHER = 0.01  # of the round: who waits less than this has ended with the others
CSV_FIELDS = ("framework", "client", "cut", "phase", "start_s", "end_s")


def _config_of(framework: str) -> RunConfig:
    """The paper's radio and servers with five clients; each framework divides them as its authors chose."""
    return with_changes(paper_base(10), [*SMALL, f"framework={framework}"])


def reproduce_fig1(out: Path, scale: str, num_seeds: int | None, say: Say) -> Outcome:
    """Clock the three rounds and write the figure, its CSV and its table into `out`. `num_seeds` has no effect."""
    known_name("scale", scale, SCALES)
    claim(out, {"config": _config_of(PROPOSED).model_dump(mode="json"), "samples per client": SAMPLES_PER_CLIENT})
    *records, even = _first_rounds(say)
    page = gantt_of_rounds(
        records, [f"{display_name(record.framework)}: {HOW[record.framework]}" for record in records], _fleet_note()
    )
    spans = [row for record in records for row in _spans_of(record)]
    files = [write_csv(out / "fig1.csv", CSV_FIELDS, spans), *save_figure(page, out / "fig1")]
    trends, summary = _fig1_trends(records, even), _summary_table(records)
    text = (
        "### Fig. 1(b): a single round\n\n![a round of SL, SplitFed V1 and HSFL](fig1.png)\n\n"
        + trend_table(trends)
        + f"\nAn illustration: n = 1 fleet, 1 round. {_fleet_note()} {machine()}\n\n"
        + markdown_rows(summary)
    )
    return Outcome("fig1", write_text(out / "fig1.md", text), files, trends, [summary])


def _fleet_note() -> str:
    """A sentence on the model, the clients and the radio of the figure."""
    config = _config_of(PROPOSED)
    return (
        f"ResNet-18 on 3x32x32, {config.fleet.num_clients} clients of the paper's fleet (seed {config.fleet_seed}) with "
        f"{SAMPLES_PER_CLIENT:,} samples each in batches of {config.train.batch_size}, "
        f"{config.network.num_subchannels} subchannels."
    )


def _first_rounds(say: Say) -> list[RoundRecord]:
    """The first round of each framework, on one fleet and one draw of the channel; last, HSFL's with all divided evenly."""
    base = _config_of(PROPOSED)
    states = OPTIMIZER_STATES[base.train.optimizer]
    world = world_of(base, measured_cost(base.model, (3, 32, 32), 10, base.train.batch_size, states))
    num_samples = np.full(base.fleet.num_clients, float(SAMPLES_PER_CLIENT))
    task = CutTask(base, world, count_batches(base, num_samples))
    say("choosing HSFL's cuts")
    own_cuts, _ = choose_cuts(task)
    one_cut = choose_one_cut(task, own_cuts)
    cuts = {name: own_cuts if method(name).own_cuts else (one_cut,) * len(own_cuts) for name in HOW}
    evenly = with_changes(base, ["allocation.policy=even"])
    contenders = [*((_config_of(name), cuts[name]) for name in HOW), (evenly, own_cuts)]
    return [_first_round(config, world, chosen, num_samples) for config, chosen in contenders]


def _first_round(config: RunConfig, world: World, cuts: tuple[int, ...], num_samples: np.ndarray) -> RoundRecord:
    """The record of the first round with cuts [K]; num_samples: [K], as the clock charges them."""
    everyone = tuple(range(len(cuts)))
    timeline, allocation_note = RoundClock(config, world, cuts, num_samples).round(0, everyone)
    return _record_of(timeline, cuts, int(num_samples.sum()), allocation_note)


def _record_of(
    timeline: Timeline, cuts: Sequence[int], num_samples: int, allocation_note: dict[str, object]
) -> RoundRecord:
    """The record of a round that was timed and not trained. Where all end together, nobody is the straggler."""
    waiting_s, (round_s,) = _rounded(timeline.waiting_s), _rounded([timeline.round_s])
    together = max(waiting_s) < TOGETHER * round_s
    return RoundRecord(
        round=1,
        framework=timeline.framework,
        sim_time_s=round_s,
        round_s=round_s,
        wall_s=0.0,
        num_samples=num_samples,
        train_loss=None,
        test_loss=None,
        test_accuracy=None,
        balanced_accuracy=None,
        recall=None,
        lr=0.0,
        cuts=list(cuts),
        started=np.flatnonzero(timeline.started).tolist(),
        kept=np.flatnonzero(timeline.kept).tolist(),
        dropped=np.flatnonzero(timeline.dropped).tolist(),
        straggler=None if together else timeline.straggler,
        waiting_s=waiting_s,
        phases={
            phase: {"start_s": _rounded(start), "end_s": _rounded(end)}
            for phase, start, end in zip(PHASES, timeline.start_s, timeline.end_s)
            if (end > start).any()
        },
        allocation=cast(AllocationNote, allocation_note),
        bytes={},
    )


def _rounded(values_s: Iterable[float]) -> list[float]:
    """Numbers rounded to seven digits, so that in the CSV a phase ends exactly where the next one begins."""
    return all_rounded(values_s, 7)


def _spans_of(record: RoundRecord) -> list[tuple[object, ...]]:
    """(framework, client, cut, phase, start_s, end_s) of everything that takes time, waiting too."""
    rows: list[tuple[object, ...]] = []
    for k, cut in enumerate(record.cuts):
        spans = [(phase, times["start_s"][k], times["end_s"][k]) for phase, times in record.phases.items()]
        spans += [("waiting", *span) for span in waiting_spans(record, k)]
        rows += [(record.framework, k, cut, *span) for span in sorted(spans, key=lambda s: s[1:]) if span[2] > span[1]]
    return rows


def _idle(record: RoundRecord) -> float:
    """The part of the round that a client waits, on average over the clients."""
    return float(np.mean(record.waiting_s) / record.round_s)


def _summary_table(records: Sequence[RoundRecord]) -> SummaryTable:
    """A table with a line for each round: seconds, cuts, straggler, and how long clients wait."""
    header = ["", "seconds of the round", "cuts", "straggler", "a client waits, mean"]
    body = [
        [
            f"{display_name(record.framework)}: {HOW[record.framework]}",
            f"{record.round_s:.1f}",
            " ".join(map(str, record.cuts)),
            "all end together" if record.straggler is None else f"client {record.straggler}",
            f"{100 * _idle(record):.0f} %",
        ]
        for record in records
    ]
    return SummaryTable("fig1-rounds", "A single round", header, body, "n = 1 fleet, 1 round.")


def _fig1_trends(records: Sequence[RoundRecord], even: RoundRecord) -> list[Trend]:
    """The paper's words beside this round's numbers; one fleet shows them and decides nothing."""
    *_, splitfed, hsfl = records
    lengths = ", ".join(f"{display_name(record.framework)} {seconds(record.round_s)}" for record in records)
    waits = ", ".join(f"{display_name(record.framework)} {100 * _idle(record):.0f} %" for record in records)
    matched = (
        f"HSFL {seconds(hsfl.round_s)}, with its cuts and an even division {seconds(even.round_s)}; SplitFed V1 "
        f"{seconds(splitfed.round_s)}"
    )
    return [
        Trend("SL's sequential training takes longest", lengths, None),
        Trend("cuts that match each client keep it from falling behind", matched, None),
        Trend("in parallel, clients wait for the slowest", f"a client waits {waits} of the round", None),
    ]
