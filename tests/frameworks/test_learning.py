"""Learning is shown, not assumed: every framework passes 90 % on digits, HSFL 97 % on real MNIST."""

from pathlib import Path

import pytest

from hsfl.config import read_config
from hsfl.framework_table import METHODS
from hsfl.runs.loop import train_run

ROUNDS = 5  # enough for each of them to pass 90 % with the small CNN
CNN = ["model.name=cnn", "train.batch_size=16", "train.lr=0.003"]


# FL, SplitFed V1 and FSL learn what HSFL learns (tests/laws), so that HSFL shows it for them in the quick tests; PSL shows it for those
# whose clients go in step, SL and CPSL for those that take turns.
QUICK = ("hsfl", "psl", "sl", "cpsl")
EVERY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in METHODS]


@pytest.mark.parametrize("framework", EVERY)
def test_every_framework_passes_90_percent_on_digits(framework: str, tmp_path: Path) -> None:
    words = [*CNN, "data.name=digits", "fleet.num_clients=5", "fleet.cuts=[2,3,3,4,5]", f"train.rounds={ROUNDS}"]
    words += ["train.eval_every=5", f"framework={framework}", "allocation.policy=even"]
    summary = train_run(read_config(None, words), tmp_path / "run")
    assert summary.test_accuracy is not None
    assert summary.test_accuracy > 0.90


@pytest.mark.slow
@pytest.mark.parametrize(
    "option", ["options.fsl.average=server", "options.psl.cut_gradient=true", "options.cpsl.cut=cluster"]
)
def test_options_of_frameworks_learn(option: str, tmp_path: Path) -> None:
    framework = option.split(".")[1]
    words = [*CNN, "data.name=digits", "fleet.num_clients=4", "fleet.cuts=[2,3,3,4]", "train.rounds=5", option]
    summary = train_run(read_config(None, [*words, "train.eval_every=5", f"framework={framework}"]), tmp_path / "run")
    assert summary.test_accuracy is not None
    assert summary.test_accuracy > (0.3 if "cut_gradient" in option else 0.85)  # averaged cut gradients learn badly


@pytest.mark.slow
def test_hsfl_passes_97_percent_on_mnist(data_dir: Path, tmp_path: Path) -> None:
    """8,000 training images, five clients with different cuts, four rounds; all 10,000 test images."""
    words = [*CNN, "data.name=mnist", f"data.dir={data_dir}", "data.limit=8000", "fleet.num_clients=5"]
    words += ["fleet.cuts=[2,3,3,4,5]", "train.rounds=4", "train.eval_every=4"]
    summary = train_run(read_config(None, words), tmp_path / "run")
    assert summary.test_accuracy is not None
    assert summary.test_accuracy > 0.97
