"""Few steps leave BatchNorm's statistics near their first values, and the run says so."""

from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from hsfl.runs.loop import train_run
from hsfl.runs.prepare import prepare
from hsfl.runs.progress import Warnings
from tests.naming import names
from tests.report.fabricated import data_in
from tests.small_runs import hsfl, tiny, tiny_words


def left_after(steps: int) -> float:
    """How much of its first running mean a BatchNorm keeps, by doing it."""
    layer = nn.BatchNorm1d(1)
    layer.running_mean = torch.ones(1)
    for _ in range(steps):
        layer(torch.tensor([[-1.0], [1.0]]))  # of mean 0
    return float(layer.running_mean)


@pytest.mark.parametrize(("batch_size", "rounds", "warned"), [(256, 3, True), (256, 30, False), (4, 6, False)])
def test_the_share_that_is_left_is_said(batch_size: int, rounds: int, warned: bool) -> None:
    notes = prepare(tiny(f"train.batch_size={batch_size}", f"train.rounds={rounds}")).notes
    steps = -(-20 // batch_size) * rounds
    assert (left_after(steps) > 0.1) == warned
    assert bool(notes) == warned
    if warned:
        names(notes[0], "1 step", f"{rounds} rounds", f"{left_after(steps):.0%}")


def test_who_has_no_batch_norm_hears_nothing(tmp_path: Path) -> None:
    words = ("train.batch_size=256", "train.rounds=1")
    assert prepare(tiny(*words, "model.norm=group")).notes == ()
    said = hsfl("run", *tiny_words(*words), "--out", tmp_path / "run")
    assert "set model.norm=group" in " ".join((said.out + said.err).split())
    (run,) = data_in(tmp_path / "run" / "report.html")["runs"]
    assert any(words.startswith("Note: ") and "set model.norm=group" in words for words in run["words"])


@pytest.mark.parametrize("framework", ["hsfl", "fl", "cl", "sl", "cpsl"])
def test_steps_are_those_that_a_run_makes(framework: str, tmp_path: Path) -> None:
    config = tiny(f"framework={framework}", "train.batch_size=256", "train.rounds=2")
    (note,) = prepare(config).notes
    train_run(config, tmp_path / "run")
    weights = load_file(tmp_path / "run" / "model.safetensors")
    (made,) = {int(tensor) for name, tensor in weights.items() if name.endswith("num_batches_tracked")}
    assert note.startswith(
        f"{made // 2} step{'s' if made > 2 else ''} a round for 2 rounds leave {left_after(made):.0%}"
    )


@pytest.mark.usefixtures("undrawn")
def test_what_holds_for_all_runs_is_said_once(tmp_path: Path) -> None:
    words = tiny_words("train.batch_size=256", "train.rounds=1")
    said = hsfl("compare", *words, "-f", "hsfl", "-f", "fl", "--seeds", 2, "--out", tmp_path)
    lines = [line for line in (said.out + said.err).splitlines() if "of BatchNorm's first statistics" in line]
    assert sum(line.startswith("warning") for line in lines) == 1
    assert len(lines) == 2, "and once among the notes"


def test_other_numbers_are_no_other_warning() -> None:
    """SL makes more steps than HSFL, and seeds divide the data otherwise: the advice is the same."""
    console, said = Console(file=StringIO()), set[str]()
    for framework in ("hsfl", "sl", "cl"):
        (note,) = prepare(tiny(f"framework={framework}", "train.batch_size=256", "train.rounds=2")).notes
        Warnings(console, framework, said).warns(note)
    Warnings(console, "fl", said).warns("something else")
    text = console.file.getvalue()
    assert text.count("BatchNorm's first statistics") == 1
    assert "something else" in text
