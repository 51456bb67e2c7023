"""How much shorter codecs make rounds, without training: each codec for all clients, and the planner's mix, with own cuts and the best single cut.

Cuts (and codecs, for the mix) are chosen again for each case's own messages, on samples of the channel; rounds are timed on fresh channels, with
the proposed allocation. The unit is a fleet: ratios of mean rounds, averaged geometrically over fleets. A fleet's answer is a small file, so
that an interrupted study goes on where it was.
"""

import csv
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.config import RunConfig, with_changes
from hsfl.errors import InputError
from hsfl.experiments.common import AGAIN, UNREADABLE, Outcome, Trend, claim, finite, machine, write_text
from hsfl.experiments.gains import WHOLE_EPOCHS, client_samples
from hsfl.experiments.statistics import Ratio, ratio_over_fleets
from hsfl.experiments.study_request import StudyRequest
from hsfl.experiments.table1.columns import FIRST_SEED, base_config, fleets_of
from hsfl.experiments.table1.fleets import cost_of
from hsfl.experiments.table1.table1_report import name_of
from hsfl.files import read_record, write_csv, write_json
from hsfl.formats import duration, took
from hsfl.models.cost_table import CostTable
from hsfl.planning.world import count_batches, world_of
from hsfl.report.figure_style import FAINT, STYLE, add_side_legend, matplotlib, save_figure
from hsfl.report.tables import SummaryTable, markdown_rows
from hsfl.runs.run_folder.records import Index, Positive
from hsfl.runs.studies.process_pool import in_processes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIX = "mix"
CODINGS = {  # by their names in tables
    "none": "none",
    "float16": "float16",
    "int8": "int8",
    "topk": "topk:0.1",
    MIX: "none,float16,int8,topk:0.1/int8",  # gradients bear less than smashed data (docs/codecs.md)
}
SAMPLES, CHANNELS = 10, 10  # of the channel, to choose on and to time on
SMALL = {"smoke": 2, "quick": SAMPLES, "full": SAMPLES}
CSV_FIELDS = ("data", "fleet", "codecs", "own_s", "single_s", "own_cuts", "own_codecs", "single_cut", "single_codec")
COLOURS = {"ham10000": "#0072B2", "cifar10": "#D55E00", "mnist": "#009E73"}


@dataclass(frozen=True)
class CodedRounds:
    """Mean rounds of a fleet over fresh channels, with the codecs of one case."""

    own_s: Positive  # each client with a cut, and a codec, of its own
    single_s: Positive  # the best single cut, with one codec
    own_cuts: list[Index]  # [K]
    own_codecs: list[str]  # [K]; empty where everybody has the same one
    single_cut: Index
    single_codec: str


@dataclass(frozen=True)
class CodecFleet:
    """One fleet with each coding."""

    data: str
    fleet: int
    rounds: dict[str, CodedRounds]  # by coding
    seconds: Positive  # of solving

    def shorter(self, coding: str, cuts: str = "own") -> float:
        """By which factor rounds get shorter than without a codec. cuts: own or single."""
        return float(getattr(self.rounds["none"], f"{cuts}_s") / getattr(self.rounds[coding], f"{cuts}_s"))

    def gain(self, coding: str) -> float:
        """Own cuts over the best single cut."""
        return self.rounds[coding].single_s / self.rounds[coding].own_s


@dataclass(frozen=True)
class CodecFleetTask:
    """A fleet to be solved. num_samples: [K] of each client."""

    config: RunConfig
    num_samples: tuple[int, ...]
    num_channels: int

    @property
    def file(self) -> str:
        return f"{self.config.data.name}/fleet-{self.config.fleet_seed}.json"


def reproduce_codecs(request: StudyRequest) -> Outcome:
    """Solve the fleets that are missing, then write the CSV, tables and the figure."""
    out, scale, datasets = request.out, request.scale, request.datasets
    bases = {data: _codec_base(data, scale) for data in datasets}
    claim(
        out,
        {
            "scale": scale,
            "configs": {data: base.model_dump(mode="json") for data, base in bases.items()},
            "codecs": CODINGS,
        },
    )
    trace_folders = [out.parent / "table1" / "traces", request.shipped]
    tasks = [
        CodecFleetTask(with_changes(bases[data], [f"fleet.seed={fleet}"]), num_samples, SMALL[scale])
        for data in datasets
        for num_samples in [tuple(client_samples(data, scale, request.data_dir, trace_folders))]
        for fleet in fleets_of(scale)
    ]
    missing = [task for task in tasks if not (out / "fleets" / task.file).exists()]
    costs = {data: cost_of(bases[data]) for data in {task.config.data.name for task in missing}}
    began = time.perf_counter()
    work = partial(_solve_and_write, costs=costs, folder=out / "fleets")
    for number, seconds in enumerate(in_processes(work, missing, request.jobs), 1):
        left_s = (time.perf_counter() - began) / number * (len(missing) - number)
        request.say(f"fleet {number}/{len(missing)}  {took(seconds)}, about {duration(left_s)} left")
    return _draw_codecs(out, scale, [read_record(out / "fleets" / task.file, CodecFleet, AGAIN) for task in tasks])


def _codec_base(data: str, scale: str) -> RunConfig:
    words = ("fleet.cuts=planned", "allocation.policy=proposed", f"allocation.samples={SMALL[scale]}")
    return with_changes(base_config(data, scale, FIRST_SEED), [*WHOLE_EPOCHS, *words])


def _solve_and_write(task: CodecFleetTask, costs: Mapping[str, CostTable], folder: Path) -> float:
    answer = solve_codec_fleet(task, costs[task.config.data.name])
    write_json(folder / task.file, asdict(answer))
    return answer.seconds


def solve_codec_fleet(task: CodecFleetTask, cost: CostTable) -> CodecFleet:
    """Choose cuts for each coding, and time them on fresh channels."""
    began = time.perf_counter()
    rounds = {name: _coded_rounds(task, cost, allowed) for name, allowed in CODINGS.items()}
    return CodecFleet(task.config.data.name, task.config.fleet_seed, rounds, time.perf_counter() - began)


def _coded_rounds(task: CodecFleetTask, cost: CostTable, allowed: str) -> CodedRounds:
    from hsfl.allocation.cuts.search import best_single_cut, search_cuts  # here, because numba takes seconds to load
    from hsfl.allocation.exact import exact
    from hsfl.planning.policy_cuts import cut_request
    from hsfl.planning.rounds.participation import CutTask
    from hsfl.planning.world import scenario_of_round

    config = with_changes(task.config, [f"link.allowed={allowed}"])
    train, settings, world = config.train, config.allocation, world_of(config, cost)
    num_batches = count_batches(config, config.network.sample_scale * np.array(task.num_samples))
    request = cut_request(CutTask(config, world, num_batches))
    fresh = [
        scenario_of_round(
            world, world.draw(index), train.batch_size, num_batches, None, settings.sharing, config.fleet.min_cut
        )
        for index in range(task.num_channels)
    ]

    def mean_s(rows: np.ndarray) -> float:
        answers = [exact(channel, rows, gap=settings.gap, time_limit_s=settings.time_limit_s) for channel in fresh]
        return float(np.mean([answer.round_s for answer in answers]))

    own = search_cuts(replace(request, settings=replace(request.settings, bound=False))).cuts
    single = best_single_cut(request).cuts
    return CodedRounds(
        mean_s(own), mean_s(single), world.cost.cuts_of(own).tolist(), list(world.codecs_of(own)),
        int(world.cost.cuts_of(single[0])), (world.codecs_of(single) or world.codecs)[0],
    )  # fmt: skip


# --- what is shown


def read_codec_fleets(path: Path) -> list[CodecFleet]:
    """The fleets of the study's CSV."""
    fleets: dict[tuple[str, int], dict[str, CodedRounds]] = {}
    try:
        for row in csv.DictReader(path.read_text().splitlines()):
            rounds = CodedRounds(
                finite(row["own_s"]), finite(row["single_s"]), list(map(int, row["own_cuts"].split())), row["own_codecs"].split(),
                int(row["single_cut"]), row["single_codec"],
            )  # fmt: skip
            fleets.setdefault((row["data"], int(row["fleet"])), {})[row["codecs"]] = rounds
    except UNREADABLE as error:
        raise InputError(f"{path} cannot be read ({error}); {AGAIN}") from None
    return [CodecFleet(data, fleet, rounds, 0.0) for (data, fleet), rounds in fleets.items()]


def _of(fleets: Sequence[CodecFleet], data: str) -> list[CodecFleet]:
    return [fleet for fleet in fleets if fleet.data == data]


def shorter_over_fleets(fleets: Sequence[CodecFleet], data: str, coding: str, cuts: str = "own") -> Ratio:
    """By which factor a coding makes rounds shorter, over the fleets of a data set."""
    return ratio_over_fleets([fleet.shorter(coding, cuts) for fleet in _of(fleets, data)])


def gain_over_fleets(fleets: Sequence[CodecFleet], data: str, coding: str) -> Ratio:
    """What own cuts gain with a coding, over the fleets of a data set."""
    return ratio_over_fleets([fleet.gain(coding) for fleet in _of(fleets, data)])


def _draw_codecs(out: Path, scale: str, fleets: Sequence[CodecFleet]) -> Outcome:
    """CSV, tables and figure."""
    rows: list[list[Any]] = [
        [
            f.data,
            f.fleet,
            name,
            r.own_s,
            r.single_s,
            " ".join(map(str, r.own_cuts)),
            " ".join(r.own_codecs),
            r.single_cut,
            r.single_codec,
        ]
        for f in fleets
        for name, r in f.rounds.items()
    ]
    files = [
        write_csv(out / f"codecs-{scale}.csv", CSV_FIELDS, rows),
        *save_figure(_codecs_figure(fleets), out / "codecs"),
    ]
    tables, data_sets = _codec_tables(fleets), list(dict.fromkeys(f.data for f in fleets))
    parts = [
        "### What codecs save of a round\n\n![factors by which rounds get shorter, and what own cuts gain, by codec](codecs.png)\n",
        f"Scale {scale}, {_num_fleets_words(fleets)}, drawn as for the gains (whole epochs, max_cut uniform in 3 to the number of units, proposed "
        f"allocation); cuts chosen on {SMALL[scale]} channels and timed on {SMALL[scale]} fresh ones. A codec is for smashed data and gradients; mix: the "
        f"planner gives each client one of {CODINGS[MIX]} with its cut. Encoding and decoding are charged as docs/codecs.md states them. Nothing "
        "here says what a codec costs in accuracy.\n",
        *(f"{table.title}:\n\n{markdown_rows(table)}" for table in tables),
        f"{_mix_words(fleets, data_sets)}\n",
        machine() + "\n",
    ]
    return Outcome("codecs", write_text(out / "codecs.md", "\n".join(parts)), files, _codec_trends(fleets), tables)


def _num_fleets_words(fleets: Sequence[CodecFleet]) -> str:
    return f"n = {len({f.fleet for f in fleets})} fleets a data set"


def _codec_tables(fleets: Sequence[CodecFleet]) -> list[SummaryTable]:
    data_sets = list(dict.fromkeys(f.data for f in fleets))
    header, coded = ["codec", *map(name_of, data_sets)], [name for name in CODINGS if name != "none"]
    note = f"{_num_fleets_words(fleets)}; geometric mean [95 % bootstrap interval over fleets] (range)."
    tables = [
        SummaryTable(
            f"codecs-{cuts}",
            f"Factors by which rounds get shorter than without a codec, {title}",
            header,
            [
                [name, *(shorter_over_fleets(fleets, data, name, cuts).cell(with_range=True) for data in data_sets)]
                for name in coded
            ],
            note,
        )
        for cuts, title in (("own", "own cuts"), ("single", "best single cut"))
    ]
    gains = [
        [name, *(gain_over_fleets(fleets, data, name).cell(with_range=True) for data in data_sets)] for name in CODINGS
    ]
    return [*tables, SummaryTable("codecs-gain", "Own cuts over the best single cut, by codec", header, gains, note)]


def _mix_words(fleets: Sequence[CodecFleet], data_sets: Sequence[str]) -> str:
    """Which codecs the planner chose."""
    words = []
    for data in data_sets:
        chosen = [codec for fleet in _of(fleets, data) for codec in fleet.rounds[MIX].own_codecs]
        counts = {codec: chosen.count(codec) for codec in dict.fromkeys(sorted(chosen))}
        words.append(f"{name_of(data)} {', '.join(f'{codec} {count}' for codec, count in counts.items())}")
    return f"Codecs of clients in the mix, over all fleets (none also where a client holds the whole model): {'; '.join(words)}."


def _codec_trends(fleets: Sequence[CodecFleet]) -> list[Trend]:
    """What int8 saves, and what is left of own cuts. The paper knows no codecs."""
    trends = []
    for data in dict.fromkeys(f.data for f in fleets):
        saved, left, before = (
            shorter_over_fleets(fleets, data, "int8"), gain_over_fleets(fleets, data, "int8"), gain_over_fleets(fleets, data, "none"),
        )  # fmt: skip
        finding = f"rounds {saved} times shorter; own cuts gain {left} instead of {before}"
        trends.append(Trend(f"(not in the paper) {name_of(data)}: int8 both ways", finding, None))
    return trends


def _codecs_figure(fleets: Sequence[CodecFleet]) -> "Figure":
    """At the left by how much each codec shortens rounds, at the right what own cuts gain with it."""
    mpl, data_sets, names = matplotlib(), list(dict.fromkeys(f.data for f in fleets)), list(CODINGS)
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(10.5, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        for place, data in enumerate(data_sets):
            colour, shift = COLOURS.get(data, "#555555"), 0.22 * (place - (len(data_sets) - 1) / 2)
            for cuts, marker, fill in (("own", "o", colour), ("single", "s", "white")):
                ratios = [shorter_over_fleets(fleets, data, name, cuts) for name in names[1:]]
                offset = shift + (0.05 if cuts == "single" else -0.05)
                _errorbars(
                    left,
                    ratios,
                    offset,
                    colour,
                    marker,
                    fill,
                    f"{name_of(data)}, {'own cuts' if cuts == 'own' else 'best single cut'}",
                )
            _errorbars(
                right, [gain_over_fleets(fleets, data, name) for name in names], shift, colour, "o", colour, None
            )
        left.set_xticks(range(len(names) - 1), names[1:])
        right.set_xticks(range(len(names)), names)
        left.set_ylabel("rounds get shorter by this factor")
        right.set_ylabel("own cuts over the best single cut")
        for axes in (left, right):
            axes.axhline(1.0, color=FAINT, linewidth=0.8)
        left.set_ylim(bottom=0.9)
        add_side_legend(figure, *left.get_legend_handles_labels())
        figure.supxlabel(
            f"{_num_fleets_words(fleets)}; geometric mean with 95 % interval over fleets", fontsize=8, color=FAINT
        )
    return figure


def _errorbars(
    axes: Any, ratios: Sequence[Ratio], shift: float, colour: str, marker: str, fill: str, label: str | None
) -> None:
    means = np.array([ratio.mean for ratio in ratios])
    ends = np.array([[ratio.low, ratio.high] for ratio in ratios]).T
    axes.errorbar(
        np.arange(len(ratios)) + shift, means, np.abs(ends - means), fmt=marker, color=colour, markerfacecolor=fill, markersize=5, capsize=2,
        linewidth=1.1, label=label,
    )  # fmt: skip
