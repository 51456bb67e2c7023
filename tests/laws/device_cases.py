"""Runs on the device that stands in for a GPU, in a process of their own: `python -m tests.laws.device_cases FOLDER [CASE ...]`.

Each case is trained on the CPU, and on the device, where it stops after a round and goes on from its checkpoint. Both must agree to the bit; then the
run is replayed on the device, and its model is tested. Besides, a device measures how fast it trains. Stdout has a line of JSON for each
case: its name, how many operations the device made, and what is wrong.
"""

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from tests.small_runs import PLAIN, TINY, assert_same_run
from tests.stand_in_gpu import count_operations, settle

ATTACK = ("attack.share=0.34", "attack.scale=1")
ESTIMATED = ("model.norm=batch", "train.norm_statistics=estimated")
INT8 = ("link.up=int8", "link.down=int8")
ONE_CUT = ("fleet.cuts=2", "fleet.one_cut=2")
TEXT = (
    *("model.name=gpt", "options.gpt.width=8", "options.gpt.depth=1", "options.gpt.heads=2", "data.name=pydoc"),
    *("data.block=8", "data.limit=24", "data.limit_test=10", "train.batch_size=4", "train.lr=0.01"),
)
THREE = ("fleet.num_clients=3", *PLAIN, "train.batch_size=8")


@dataclass(frozen=True)
class Case:
    """A run: its settings, and what is given from Python."""

    words: tuple[str, ...] = ()
    base: tuple[str, ...] = TINY
    given: Callable[[], dict[str, object]] = field(default=dict)
    to_the_bit: bool = True


def own_module() -> dict[str, object]:
    """A module that is split by its graph, with a branch, a buffer that does not travel and a tensor that it makes itself."""
    import hsfl

    class Branched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
            self.register_buffer("weights", torch.linspace(0.5, 1.5, 4).view(1, 4, 1, 1), persistent=False)
            self.last = nn.Linear(4 * 64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.first(x))
            x = x + torch.relu(self.second(x)) * self.weights
            places = torch.arange(x.shape[-1], device=x.device, dtype=x.dtype)
            return self.last((x + 0.01 * places).flatten(1))

    torch.manual_seed(0)
    return {"model": hsfl.split(Branched(), torch.zeros(2, 1, 8, 8))}


def table() -> dict[str, object]:
    """Numbers to be predicted from numbers."""
    import hsfl

    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4))
    return {"dataset": hsfl.dataset(x, x @ np.array([1.0, -2.0, 3.0, 0.5]), task="regression")}


def colours() -> dict[str, object]:
    """Colour images."""
    import hsfl

    rng = np.random.default_rng(0)
    return {"dataset": hsfl.dataset(rng.integers(0, 256, (80, 3, 8, 8), np.uint8), rng.integers(0, 4, 80))}


CASES: dict[str, Case] = {
    "hsfl": Case(),
    "fl": Case(("framework=fl",)),
    "cl": Case(("framework=cl",)),
    "sl": Case(("framework=sl",)),
    "cpsl": Case(("framework=cpsl", "options.cpsl.clusters=2")),
    "fsl": Case(("framework=fsl", "options.fsl.average=server")),
    "splitfed_v1": Case(("framework=splitfed_v1", *ONE_CUT)),
    "splitfed_v2": Case(("framework=splitfed_v2", *ONE_CUT)),
    "psl": Case(("framework=psl",)),
    "psl with a gradient at the cut": Case(("framework=psl", "options.psl.cut_gradient=true")),
    "locfedmix_sl": Case(("framework=locfedmix_sl",)),
    "momentum and FedProx": Case(("train.optimizer=momentum", "train.proximal_mu=0.1")),
    "SGD": Case(("train.optimizer=sgd",)),
    "dropout": Case(("model.dropout=0.3",)),
    "batch norm, estimated again": Case(ESTIMATED),
    "estimated by one server's clients": Case(("framework=splitfed_v2", *ONE_CUT, *ESTIMATED)),
    "contiguous": Case(("model.memory_format=contiguous",)),
    "ResNet-18": Case(("model.name=resnet18", "data.limit=24", "train.batch_size=4")),
    "top-k and int8": Case(("link.up=topk:0.1", "link.down=int8", "link.model=int8")),
    "float16": Case(("link.up=float16", "link.down=float16", "link.model=float16")),
    "int8 in step": Case(("framework=splitfed_v2", *ONE_CUT, *INT8)),
    "int8 gradients of heads": Case(("framework=psl", "link.model=int8")),
    "clipping": Case(("train.clip_norm=0.01",)),
    "median": Case(("train.average=median",)),
    "trimmed mean": Case(("train.average=trimmed_mean", "train.trim=0.34")),
    "signs flipped": Case(("attack.kind=sign_flip", *ATTACK)),
    "noise": Case(("attack.kind=noise", *ATTACK)),
    "labels flipped": Case(("attack.kind=label_flip", "attack.share=0.34")),
    "augmented images": Case(("data.augment=flip_crop", "model.name=cnn"), THREE, colours),
    # Torch takes another way through attention on a device that it does not know. Adam would make large steps of what is rounding alone.
    "tokens": Case((*TEXT, "train.optimizer=sgd"), THREE, to_the_bit=False),
    "numbers": Case(("model.name=mlp", "train.lr=0.02"), THREE, table),
    "a module's graph": Case(("fleet.cuts=2",), given=own_module),
}

MEASURED = "hsfl measure"


def play(case: Case, folder: Path) -> None:
    """Train on both; fails unless records and models are the same, and the run agrees with its replay."""
    from hsfl.config import read_config
    from hsfl.runs.export import evaluate_folder
    from hsfl.runs.loop import train_run
    from hsfl.runs.replay import replay_run

    def train(device: str, rounds: int, resume: bool = False) -> None:
        words = [*case.base, *case.words, f"device={device}", f"train.rounds={rounds}"]
        train_run(read_config(None, words), folder / device, resume=resume, **case.given())  # type: ignore[arg-type]

    train("cpu", 2)
    train("cuda", 1)
    train("cuda", 2, resume=True)
    if case.to_the_bit:
        assert_same_run(folder / "cpu", folder / "cuda")
    else:
        assert_close_models(*(load_file(folder / device / "model.safetensors") for device in ("cpu", "cuda")))
    if not case.given():
        report = replay_run(folder / "cuda")
        assert report.agrees, report
        evaluate_folder(folder / "cuda")


def assert_close_models(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=1e-4, atol=1e-6)


def measure(folder: Path) -> None:
    """`hsfl measure --server`, on the device."""
    from tests.small_runs import hsfl

    torch.accelerator.synchronize = lambda device: None  # the device has always done its work
    words = ("--set", "device=cuda", "--model", "cnn", "--input", "1x8x8", "--seconds", "0.1")
    answer = hsfl("measure", *words, "--server", "-o", folder / "server.toml")
    assert answer.code == 0, answer


def what_is_wrong(work: Callable[[], object]) -> str | None:
    """The traceback of some work; None where all is well."""
    try:
        work()
    except Exception:
        return traceback.format_exc()
    return None


def main() -> None:
    standing_in = settle()
    from hsfl.runs import prepare

    prepare.find_device = lambda name: torch.device("cpu") if name == "cpu" else standing_in
    torch.set_num_threads(1)
    folder, wanted = Path(sys.argv[1]), sys.argv[2:]
    works = {name: partial(play, case, folder / str(number)) for number, (name, case) in enumerate(CASES.items())}
    works |= {MEASURED: partial(measure, folder)}
    for name in wanted or works:
        before = next(count_operations)
        problem = what_is_wrong(works[name])
        print(json.dumps([name, next(count_operations) - before - 1, problem]), flush=True)


if __name__ == "__main__":
    main()
