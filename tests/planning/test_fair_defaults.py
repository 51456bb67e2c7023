"""Without a word about cuts and allocation every framework gets the same means, and config.json says which."""

from importlib import util
from pathlib import Path

import numpy as np
import pytest

from hsfl.config import RunConfig, read_config
from hsfl.errors import InputError
from hsfl.framework_table import METHODS, method
from hsfl.planning.cuts import fastest_one_cut
from hsfl.planning.fair_defaults import without_auto
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.rounds.round_clock import RoundClock
from hsfl.planning.world import count_batches
from hsfl.runs.loop import train_run
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import raises
from tests.small_runs import TINY

SILENT = [word for word in TINY if not word.startswith(("fleet.cuts", "allocation."))] + ["allocation.samples=2"]
TURNS = ("sl", "splitfed_v2", "psl", "locfedmix_sl", "cpsl")


def silent(*changes: str) -> RunConfig:
    """A small config without a word about cuts and allocation."""
    return read_config(None, [*SILENT, *changes])


@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if row.built_in])
def test_what_auto_becomes(name: str) -> None:
    config, row = without_auto(silent(f"framework={name}")), method(name)
    assert config.allocation.policy == ("proposed" if row.copy_per_client else "even")
    assert config.fleet.cuts == ("planned" if row.own_cuts else "auto")
    assert config.fleet.one_cut == ("auto" if row.own_cuts else "fastest")
    assert without_auto(config) == config


@pytest.mark.parametrize(
    ("name", "asked", "became"),
    [
        ("cnn", "auto", "channels_last"),
        ("mobilenet_v2", "auto", "channels_last"),
        ("resnet18", "auto", "contiguous"),
        ("resnet18", "channels_last", "channels_last"),
        ("cnn", "contiguous", "contiguous"),
    ],
)
def test_how_images_lie_is_the_models(name: str, asked: str, became: str) -> None:
    config = silent(f"model.name={name}", f"model.memory_format={asked}")
    assert without_auto(config).model.memory_format == became


@pytest.mark.parametrize(
    ("words", "one_cut"),
    [
        (["fleet.cuts=[2, 1, 3]"], 1),
        (["fleet.cuts=2"], 2),
        (["fleet.cuts=max_cut"], "max_cut"),
        (["fleet.one_cut=2", "fleet.cuts=max_cut"], 2),
        (["allocation.policy=own"], "max_cut"),
        (["allocation.policy=own", "framework=cpsl"], "fastest"),  # its own method chooses the cut
    ],
)
def test_words_about_cuts_count(words: list[str], one_cut: int | str) -> None:
    assert without_auto(silent("framework=splitfed_v1", *words)).fleet.one_cut == one_cut


def test_a_run_keeps_what_auto_became_and_goes_on_with_it(tmp_path: Path) -> None:
    config = silent("train.rounds=1")
    train_run(config, tmp_path / "run")
    kept = RunFolder(tmp_path / "run").config()
    assert (kept.allocation.policy, kept.fleet.cuts) == ("proposed", "planned")
    train_run(silent("train.rounds=2"), tmp_path / "run", resume=True)
    assert [record.allocation["policy"] for record in RunFolder(tmp_path / "run").rounds()] == ["proposed"] * 2


def test_without_the_optimiser_it_is_an_error_that_names_even(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = util.find_spec
    monkeypatch.setattr(
        "hsfl.planning.fair_defaults.find_spec", lambda name: None if name == "numba" else find_spec(name)
    )
    with raises(InputError, "allocation.policy=auto", "allocation.policy=even"):
        without_auto(silent())
    assert without_auto(silent("framework=sl")).allocation.policy == "even"
    assert without_auto(silent("allocation.policy=even")).fleet.cuts == "planned"


def sampled_rounds_s(config: RunConfig, cut: int) -> float:
    """The mean of the first rounds of a run with one cut for all, by the clock of the run."""
    config = config.model_copy(update={"fleet": config.fleet.model_copy(update={"one_cut": cut})})
    bench = prepare(config)
    clusters = bench.task.arranged.clusters
    from hsfl.planning.rounds.round_clock import Extras

    extras = Extras(clusters=clusters) if clusters else None
    clock = RoundClock(
        bench.task.config, bench.world, (cut,) * bench.world.fleet.num_clients, bench.num_samples, extras
    )
    return float(np.mean([clock.plain_s(index) for index in range(12)]))


@pytest.mark.parametrize("framework", ["splitfed_v1", "sl", "splitfed_v2", "psl"])
@pytest.mark.parametrize("policy", ["auto", "even"])
def test_one_cut_is_the_fastest_of_the_framework_s_own_clock(framework: str, policy: str) -> None:
    """The chosen cut is within a few per cent of the best by the run's own rounds, which differ from those it was chosen on."""
    config = without_auto(
        silent(f"framework={framework}", f"allocation.policy={policy}", "fleet.max_cut=5", "network.main_hz=2e9",
               "network.subchannel_hz=1e5", "allocation.samples=20")
    )  # fmt: skip
    bench = prepare(config)
    task = CutTask(config, bench.world, count_batches(config, bench.num_samples))
    rounds_s = {cut: sampled_rounds_s(config, cut) for cut in range(1, 6)}
    assert rounds_s[fastest_one_cut(task)] <= 1.05 * min(rounds_s.values())
    assert max(rounds_s.values()) > 1.2 * min(rounds_s.values()), "the cut must matter for the test to mean something"
