"""The columns of Table 1 on one data set and seed: one world, one plan, one budget, a config for every framework.

Two sets of runs: `budget` (one budget of simulated seconds, tau twice HSFL's planned round) and `rounds` (equal rounds, nobody
dropped, no budget). Run folders lie in `OUT/<data set>/<set>/<framework>/seed-<n>`.
"""

import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from hsfl.config import RunConfig, read_config, with_changes
from hsfl.data.datasets import Dataset, load
from hsfl.errors import InputError, known
from hsfl.experiments.shared import SCALES, Say
from hsfl.frameworks import FRAMEWORKS
from hsfl.records import write_json
from hsfl.rng import stream
from hsfl.training.prepare import prepare
from hsfl.training.simulate import choose_clients, make_pace
from hsfl.training.world import count_batches

SETS = ("rounds", "budget")
SIZES = {  # what a scale changes; a subset affects training alone, the clock charges the whole set
    "smoke": ("model.name=cnn", "model.norm=none", "data.limit=160", "data.limit_test=100", "train.rounds=3"),
    "quick": ("data.limit=5000", "data.limit_test=1000", "train.rounds=30"),
    "full": ("train.rounds=100",),
}
FEWER_STEPS = {"smoke": 8, "quick": 32}  # batch sizes, so that a subset makes about as many steps as the whole set
SIDES = {"smoke": 16, "quick": 32}  # larger images are made so small; at full scale they stay


@dataclass(frozen=True)
class Plan:
    """HSFL's cuts, and what follows for everyone: made once, kept in a file, since a search may end by the clock."""

    cuts: list[int]  # [K]
    max_cut: list[int]  # [K]
    num_units: int
    planned_s: float  # HSFL's mean round over the plan's samples
    gap: float
    tau_s: float  # twice that
    budget_s: float  # what HSFL needs for train.rounds rounds


@dataclass(frozen=True)
class Setup:
    """All that the columns of one data set and seed share."""

    base: RunConfig
    dataset: Dataset
    plan: Plan

    def config(self, label: str, which: str) -> RunConfig:
        """The config of a column in one of the two sets."""
        from hsfl.compare import contender

        known("set of runs", which, SETS)
        plan, limits = self.plan, ["train.tau_s=null", "train.budget_s=null"]
        if which == "budget":
            limits = [f"train.tau_s={self.plan.tau_s!r}", f"train.budget_s={self.plan.budget_s!r}"]
        own = [f"fleet.max_cut={plan.max_cut}", "fleet.cuts=max_cut", "allocation.policy=even"]
        if label.split(",")[0] == "hsfl":
            own[1:] = [f"fleet.cuts={plan.cuts}", "allocation.policy=proposed"]
        return contender(with_changes(self.base, [*own, *limits]), label)


def base_config(data: str, scale: str, seed: int, data_dir: Path | None) -> RunConfig:
    """The paper's preset on a data set, made as small as the scale asks."""
    known("scale", scale, SCALES)
    changes = [f"data.name={json.dumps(data)}", f"seed={seed}", "allocation.samples=20", "train.eval_every=1"]
    if data_dir is not None:
        changes.append(f"data.dir={json.dumps(str(data_dir))}")
    config = read_config("paper-cifar10", [*changes, *SIZES[scale]])
    if scale == "full":
        return config
    channels, height, width = _shape(data, config.data.dir)
    side = min(height, width, SIDES[scale])
    full = num_train(data, config.data.dir)
    limit = min(config.data.limit or full, full)
    return with_changes(
        config,
        [
            f"model.input=[{channels}, {side}, {side}]",
            f"train.batch_size={FEWER_STEPS[scale]}",
            f"network.sample_scale={full / limit!r}",
        ],
    )


@lru_cache(maxsize=8)
def _whole(data: str, data_dir: str | None) -> tuple[int, tuple[int, ...]]:
    """Training images of the whole set, and their shape."""
    dataset = load(data, data_dir)
    return len(dataset.train_y), dataset.train_x.shape[1:]


def num_train(data: str, data_dir: str | None) -> int:
    return _whole(data, data_dir)[0]


def _shape(data: str, data_dir: str | None) -> tuple[int, ...]:
    return _whole(data, data_dir)[1]


def make_setup(base: RunConfig, folder: Path, say: Say) -> Setup:
    """Read the data, and make the plan or read the one that is there."""
    data = base.data
    dataset = load(
        data.name, data.dir, limit=data.limit, limit_test=data.limit_test, rng=stream(base.seed, "data limit"),
        split=data.split,
    )  # fmt: skip
    path = plan_path(folder, base.seed)
    if path.exists():
        return Setup(base, dataset, read_plan(path))
    say(f"{data.name}, seed {base.seed}: choosing HSFL's cuts")
    setup = Setup(base, dataset, make_plan(base, dataset))
    write_json(path, asdict(setup.plan))
    return setup


def plan_path(folder: Path, seed: int) -> Path:
    return folder / f"plan-seed-{seed}.json"


def read_plan(path: Path) -> Plan:
    try:
        return Plan(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}); delete it and run the same command again") from None


def make_plan(base: RunConfig, dataset: Dataset) -> Plan:
    """Cuts over samples of the channel; tau twice the planned round; the budget of HSFL's rounds."""
    from hsfl.training.allocating import plan_cuts

    bench = prepare(with_changes(base, ["fleet.cuts=max_cut", "allocation.policy=even"]), dataset)
    batch_size, settings = base.train.batch_size, base.allocation.model_copy(update={"policy": "proposed"})
    num_batches = count_batches(base, bench.num_samples)
    found = plan_cuts(bench.world, settings, batch_size, num_batches, base.fleet.min_cut)
    plan = Plan(
        found.cuts.tolist(),
        bench.world.fleet.max_cut.tolist(),
        bench.world.cost.num_units,
        found.mean_s,
        found.gap,
        2 * found.mean_s,
        1.0,
    )
    return replace(plan, budget_s=rounds_s(Setup(base, dataset, plan).config("hsfl", "rounds"), dataset))


def rounds_s(config: RunConfig, dataset: Dataset) -> float:
    """The simulated seconds of all rounds; a little more, so that rounding does not cost the last one."""
    bench = prepare(config, dataset)
    pace = make_pace(bench, FRAMEWORKS[config.framework](bench.task))
    times = (pace.round(index, choose_clients(config, index))[0].round_s for index in range(config.train.rounds))
    return sum(times) * (1 + 1e-9)
