"""The columns of Table 1, and the setting that they share on a data set.

A column is a framework with its cuts and its allocation. What it learns comes from a *trace* (one training, round by round,
without a clock), how long its rounds take from a *fleet*. HSFL, SplitFed V1, FSL and FL are one algorithm a round as long
as nobody is dropped, so their columns share one trace, `twins`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hsfl import plugins
from hsfl.codec_table import link_text
from hsfl.config import RunConfig, read_config, with_changes
from hsfl.data.registry import FACTS
from hsfl.errors import InputError, known_name
from hsfl.experiments.common import SCALES
from hsfl.framework_table import METHODS, PROPOSED, method
from hsfl.runs.studies.contender_names import name_by_itself
from hsfl.runs.studies.contenders import contender, read_contender, split_label

BUILT_IN = {name: row for name, row in METHODS.items() if row.built_in}
TWINS = [name for name, row in BUILT_IN.items() if row.copy_per_client]  # one algorithm a round
TWIN_TRACE = "twins"
UNTRAINED = ("fleet.cuts", "fleet.one_cut", "allocation.")  # settings that change a twin's seconds, not what it learns


@dataclass(frozen=True)
class Column:
    """One column of Table 1.

    cuts: "own" (a cut for each client, chosen for this allocation), "single" (the best cut for all, chosen for this
    allocation), "smallest" (the smallest max_cut for all) or "random" (RCLS). Where the framework knows only one cut (FL,
    CL), `cuts` has no effect. policy: "even" or "proposed".

    A contender (as `hsfl compare -f` takes them) is a column, too: `label` is what it was called, its cuts are those that its
    settings ask for ("own" or "smallest" where they ask for none), and its policy is any.
    """

    title: str
    framework: str
    cuts: str = "smallest"
    policy: str = "even"
    label: str = ""

    @property
    def trace(self) -> str:
        """The training that this column's accuracy comes from."""
        asked = read_contender(self.label or self.framework)
        same = all(change.startswith(UNTRAINED) for change in asked.changes)
        return TWIN_TRACE if self.framework in TWINS and same else asked.text

    def config(self, base: RunConfig) -> RunConfig:
        """The config of this column: the settings `base` that all columns share, with the column's own."""
        if self.label:
            return contender(base, self.label)
        return with_changes(base, [f"framework={self.framework}", f"allocation.policy={self.policy}"])


class Columns(dict[str, Column]):
    """The columns by name; the label of a contender is the name of a column, too."""

    def __missing__(self, label: str) -> Column:
        base, asked = read_config("paper-mnist", SPELT_OUT), read_contender(label)
        config, row = contender(base, label), method(asked.framework)
        asks_for_cuts = any(change.startswith(("fleet.cuts", "fleet.one_cut")) for change in asked.changes)
        cuts = "asked" if asks_for_cuts else "own" if row.own_cuts else "smallest"
        return Column(name_by_itself(base, label), row.name, cuts, config.allocation.policy, label)


PUBLISHED = "splitfed_v1"  # the budget is what its rounds take
CHOSEN = {  # columns that say more than a framework's name
    PROPOSED: Column("HSFL, proposed", PROPOSED, "own", "proposed"),
    "hsfl_even": Column("HSFL, even", PROPOSED, "own", "even"),
    "single_proposed": Column("V1, best single cut, proposed", PUBLISHED, "single", "proposed"),
    "single_even": Column("V1, best single cut, even", PUBLISHED, "single", "even"),
    PUBLISHED: Column("SplitFed V1, as published", PUBLISHED),
    "rcls": Column("RCLS", PROPOSED, "random", "proposed"),
    "scls": Column("SCLS", PROPOSED, "smallest", "proposed"),
}
COLUMNS = Columns(CHOSEN | {name: Column(row.title, name) for name, row in BUILT_IN.items() if name not in CHOSEN})
FOUR = ("single_even", "hsfl_even", "single_proposed", PROPOSED)  # the 2x2 of cuts and allocation
GAINS = (*FOUR, PUBLISHED, "rcls", "scls")  # what needs no training
SEVEN = (PROPOSED, "hsfl_even", PUBLISHED, "single_proposed", "fl", "sl", "cl")  # Table 1's
ALL = (*SEVEN, *(name for name in BUILT_IN if name not in SEVEN))

DATASETS = ("ham10000", "cifar10", "mnist")
TAU_DATA = "ham10000"  # has a row of its own with stragglers dropped
SMOKE = ("model.name=cnn", "model.norm=none", "data.limit=160", "data.limit_test=100", "train.rounds=4")
# A subset in batches of 256 would make few steps; the paper's rate of 0.001 is for 256, and Adam's falls with the root of the batch.
SMALL_BATCHES = ("train.batch_size=32", "train.lr=0.0003")
# All samples, each charged as often as it is trained. With a fifth of an epoch between two averages CIFAR-10's and MNIST's clients
# drift less apart; tests, which the clock does not charge, take as long as a tenth of the training every fifth round.
# BatchNorm's statistics are estimated for the tests; what averaged ones would give stands beside.
FULL = (
    *("train.batch_size=32", "train.eval_every=5", "network.full_batches=false"),
    "train.norm_statistics=estimated",
)
SIZES: dict[
    str, dict[str, tuple[str, ...]]
] = {  # what a scale changes; a subset affects training alone, the clock charges the whole set
    "smoke": dict.fromkeys(FACTS, (*SMOKE, "train.batch_size=8", "data.augment=none")),
    "quick": {
        "ham10000": (*SMALL_BATCHES, "train.rounds=30", "train.lr=0.0001"),
        "cifar10": (*SMALL_BATCHES, "data.limit=10000", "data.limit_test=5000", "train.rounds=40"),
        "mnist": (*SMALL_BATCHES, "data.limit=5000", "data.limit_test=5000", "train.rounds=20"),
        "digits": (*SMALL_BATCHES, "train.rounds=20"),
    },
    "full": {
        "ham10000": (*FULL, "train.rounds=60", "train.lr=0.0001"),
        "cifar10": (*FULL, "train.local_epochs=0.2", "train.rounds=300", "train.lr=0.0003"),
        "mnist": (*FULL, "train.local_epochs=0.2", "train.rounds=50", "train.lr=0.0003"),
        "digits": (*FULL, "train.rounds=20", "train.lr=0.0003"),
    },
}
FULL_RATES = {  # of trainings whose rate differs from the twins', as `hsfl reproduce rates` found
    ("ham10000", "sl"): 0.0003,
    ("ham10000", "cl"): 0.0003,
    ("cifar10", "cl"): 0.001,
    ("mnist", "cl"): 0.0001,
}
SIDES = {"smoke": 16, "quick": 32, "full": 32}  # larger images are reduced to this side
NUM_FLEETS = {"smoke": 2, "quick": 30, "full": 30}
SPELT_OUT = (  # whatever the defaults are
    *("fleet.cuts=max_cut", "allocation.policy=even", "allocation.samples=20", "network.speed_std=0.1"),
)
FIRST_SEED = 1
NUM_SEEDS = {"smoke": 1, "quick": 1, "full": 3}
CHECK_ROUNDS = {"smoke": 4, "quick": 1, "full": 1}  # for which V1 and FL are trained themselves, to show the equality
SHARE_OF_ROUNDS = 2  # frameworks that are no twins, such as SL and CL, are trained for half as many rounds as the twins


def columns_named(text: str) -> tuple[str, ...]:
    """`seven` (the default), `all`, or names joined by commas; SplitFed V1 as published (the budget) and HSFL (what all
    others are set against) are always there.

    A name may be that of a framework that a plugin registered. Settings of the contender may follow a framework's name:
    `hsfl,fedavgm,options.fedavgm.momentum=0.5,fl` names three columns. A name of its own may stand before: `Mine=fedavgm,...`.
    """
    if text in ("seven", "all"):
        return SEVEN if text == "seven" else ALL
    labels: list[str] = []
    for word in filter(None, split_label(text)):
        _, equals, value = word.partition("=")
        is_named = value.strip() in METHODS  # `Mine=hsfl` is a column; else it is a setting of the column before
        if equals and labels and not is_named:
            labels[-1] += f",{word}"
        else:
            labels.append(word)
    for label in labels:
        name = split_label(label)[0].rpartition("=")[2].strip()
        plugins.find_installed(name)
        known_name("column", name, dict.fromkeys([*COLUMNS, *METHODS]), plugins.WAY_OUT)
        if label not in COLUMNS:
            COLUMNS[label]  # what is wrong with its settings is told now
    if not labels:
        raise InputError(f"--columns is {text!r}; name at least one of {', '.join(COLUMNS)}")
    return tuple(dict.fromkeys([*labels, PUBLISHED, PROPOSED]))


def seeds_of(scale: str, num_seeds: int | None) -> list[int]:
    """The training seeds of a scale: `num_seeds` of them, by default the scale's own number."""
    known_name("scale", scale, SCALES)
    return list(range(FIRST_SEED, FIRST_SEED + (num_seeds or NUM_SEEDS[scale])))


def fleets_of(scale: str) -> list[int]:
    """The seeds that draw the fleets and channels."""
    return list(range(FIRST_SEED, FIRST_SEED + NUM_FLEETS[known_name("scale", scale, SCALES)]))


def base_config(data: str, scale: str, seed: int, data_dir: Path | None = None) -> RunConfig:
    """The paper's preset on a data set, made as small as the scale asks; tau none, no budget, even allocation."""
    known_name("scale", scale, SCALES)
    preset = f"paper-{data}" if data in DATASETS else "paper-mnist"
    changes = [f"data.name={json.dumps(data)}", f"seed={seed}", "train.eval_every=1", *SPELT_OUT]
    if data_dir is not None:
        changes.append(f"data.dir={json.dumps(str(data_dir))}")
    config = read_config(preset, [*changes, *SIZES[scale][data]])
    num_train, (channels, height, width), _ = FACTS[data]
    side = min(height, width, SIDES[scale])
    trained_on = min(config.data.limit or num_train, num_train)
    return with_changes(
        config,
        [f"model.input=[{channels}, {side}, {side}]", f"network.sample_scale={num_train / trained_on!r}"],
    )


def trace_config(data: str, scale: str, seed: int, trace: str, data_dir: Path | None = None) -> RunConfig:
    """The config that trains a trace: HSFL for the twins; one of the others for some rounds, to show that it is a twin; else
    the framework itself, for half the twins' rounds."""
    base = base_config(data, scale, seed, data_dir)
    if trace == TWIN_TRACE:
        keep = ["log.model_every=1"] if data == TAU_DATA else []  # columns with tau go on from the twins' models
        return with_changes(base, [f"framework={PROPOSED}", *keep])
    config = contender(base, trace)
    if (codecs := link_text(config.link)) is not None:
        raise InputError(
            f"{trace!r} sets {codecs}, but a trace is timed on fleets with other cuts, which would learn something else with a codec; "
            "leave it out"
        )
    if scale == "full" and (data, trace) in FULL_RATES:
        config = with_changes(config, [f"train.lr={FULL_RATES[data, trace]}"])
    rounds = CHECK_ROUNDS[scale] if trace in TWINS else max(1, config.train.rounds // SHARE_OF_ROUNDS)
    return with_changes(config, [f"train.rounds={rounds}"])


def traces_of(columns: Sequence[str]) -> list[str]:
    """The trainings that these columns need, each once."""
    return list(dict.fromkeys(COLUMNS[name].trace for name in columns))
