"""HSFL on the shared work: `hsfl.run` with an observer that is told when a round is over.

Settings: `framework` (fl, or hsfl with cuts from 1 to all units), `engine` and `workers`, `model` (shared: as all peers have it; own: HSFL's
own ResNet-18, the same network with 3x3 convolutions over single pixels as matrix products).
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from paired_rounds import PairedRounds, read_spec
from shared_work import COUNTS, NUM_CLASSES, SEED, WORKS, Work, arrays_of, load_arrays, make_model, read_arrays

import hsfl
from hsfl.config.sections import ModelConfig
from hsfl.models.zoo import build
from hsfl.rng import stream
from hsfl.runs import loop
from hsfl.training.batches import pass_positions

HAS_MEMORY_FORMAT = "memory_format" in ModelConfig.model_fields


class Rounds(hsfl.Observer):
    """Tells the measurement that a round is over, with its clients, their batches and the new weights."""

    def __init__(self, rounds: PairedRounds, model: torch.nn.Module, counts_here: bool) -> None:
        self.rounds, self.model, self.counts_here = rounds, model, counts_here
        self.kept, self.joined = list[int](), None

    def round_starts(self, round_number: int, kept: Sequence[int], num_samples: int) -> None:
        self.kept = list(kept)

    def batch_starts(self, client: int, num_samples: int) -> None:
        if self.counts_here:
            COUNTS.add(num_samples)

    def round_ends(self, record: Any) -> None:
        plan = batches_of_round(self.rounds.work, self.kept, record.round - 1)
        self.rounds.round_done(self.arrays, self.kept, plan)

    def arrays(self) -> list[np.ndarray]:
        self.model.load_state_dict(loop.exported_model(*self.joined).named())
        return arrays_of(self.model)


def batches_of_round(work: Work, clients: Sequence[int], round_index: int) -> list[Any]:
    """The clients of a round with the samples of each batch, as HSFL draws them."""
    plan = []
    for client in clients:
        passes = pass_positions(work.num_samples, work.batch_size, stream(SEED, "batches", client, round_index))
        plan.append([client, [(work.samples_of(client).start + positions).tolist() for positions in passes]])
    return plan


def settings_of(spec: dict[str, Any], work: Work, num_units: int, total_rounds: int) -> list[str]:
    asked = spec["settings"]
    settings = [
        f"framework={asked['framework']}", f"seed={SEED}", f"fleet.num_clients={work.num_clients}", "data.partition=given",
        f"train.clients_per_round={work.per_round}",
        f"train.batch_size={work.batch_size}", "train.optimizer=sgd", f"train.lr={work.lr}", f"train.rounds={total_rounds}",
        f"train.eval_every={total_rounds + 1}", f"log.checkpoint_every={total_rounds}", "allocation.policy=even",
        f"engine.name={asked['engine']}",
    ]  # fmt: skip
    if asked["framework"] == "hsfl":
        settings.append(f"fleet.cuts={[1 + k % num_units for k in range(work.num_clients)]}")
    if asked["engine"] == "workers":
        settings += [f"engine.workers={asked['workers']}", "engine.threads=1"]
    if HAS_MEMORY_FORMAT:
        settings.append(f"model.memory_format={spec['memory_format']}")
    return settings


def main() -> None:
    spec = read_spec()
    torch.set_num_threads(1)
    work, own_model = WORKS[spec["work"]], spec["settings"].get("model") == "own"
    model = make_model(work, spec["shared"])
    if own_model:
        weights, model = arrays_of(model), build(work.model, work.shape, NUM_CLASSES)
        load_arrays(model, weights)
    x, y = read_arrays(work, spec["shared"])
    holders = np.repeat(np.arange(work.num_clients), work.num_samples)
    rounds = PairedRounds(spec)
    if not HAS_MEMORY_FORMAT:
        rounds.memory_format = "contiguous"
    observer = Rounds(rounds, model, own_model)
    make_round = loop._round

    def remember(parts: Any, *given: Any) -> Any:
        answer = make_round(parts, *given)
        observer.joined = (parts.framework, answer[0])
        return answer

    loop._round = remember  # the state of a round is nowhere else to be had without a file for each round
    num_units = len(model.units) if own_model else len(model)
    with tempfile.TemporaryDirectory() as folder:
        data = hsfl.dataset(
            x, y, test_x=x[:2], test_y=y[:2], clients=holders, classes=[str(i) for i in range(NUM_CLASSES)]
        )
        rounds.begin()
        hsfl.run(
            settings=settings_of(spec, work, num_units, rounds.total_rounds), out=Path(folder) / "run", data=data, model=model,
            observer=observer, report=False,
        )  # fmt: skip


if __name__ == "__main__":
    main()
