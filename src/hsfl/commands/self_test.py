"""The self-test of `hsfl doctor`: tiny runs in a folder of their own, which is removed, and one allocation. A failure raises an error."""

import tempfile
import time
from pathlib import Path

GAP = 1e-6  # that the allocation must prove
SETTINGS = (
    "fleet.num_clients=2",
    "allocation.policy=even",
    "train.rounds=2",
    "train.batch_size=8",
    "train.lr=0.01",
)


class SelfTest:
    """Tests in a row; each says in words what it found."""

    def __init__(self) -> None:
        self.hsfl_model: bytes | None = None  # the file of the model that HSFL trained

    def train_hsfl(self) -> str:
        """Two clients with different cuts train."""
        began = time.perf_counter()
        self.hsfl_model = _train("hsfl", "fleet.cuts=[1, 2]")
        return f"two clients with cuts 1 and 2 trained two rounds in {time.perf_counter() - began:.1f} s"

    def train_fl(self) -> str:
        """FL trains the same model as HSFL, whatever the cuts."""
        if self.hsfl_model is None:
            raise RuntimeError("not tried, because HSFL did not train")
        began = time.perf_counter()
        if _train("fl") != self.hsfl_model:
            raise ArithmeticError("HSFL and FL train different models; the build of torch or the processor is at fault")
        return f"the same model as HSFL's, to the bit, in {time.perf_counter() - began:.1f} s"

    def allocate_exactly(self) -> str:
        """A round of three clients and four subchannels is allocated, with a proof; the even allocation takes no less."""
        from hsfl.allocation.answer import within_gap  # here, because numba takes seconds to load
        from hsfl.allocation.random_scenarios import random_scenario
        from hsfl.allocation.solvers import allocate
        from hsfl.rng import stream

        began = time.perf_counter()
        scenario, cuts = random_scenario(stream(0, "doctor"), 3, 4), [1, 2, 3]
        answer, even = (allocate(scenario, cuts, solver, gap=GAP) for solver in ("exact", "even"))
        if not within_gap(answer.gap, GAP) or not answer.lower_bound_s <= answer.round_s <= even.round_s:
            raise ArithmeticError(
                f"a round of {answer.round_s:.6g} s has the bound {answer.lower_bound_s:.6g} s, and takes {even.round_s:.6g} s shared evenly"
            )
        return (
            f"a round of {answer.round_s:.4g} s, proven to {answer.gap:.1e} (shared evenly {even.round_s:.4g} s), "
            f"in {time.perf_counter() - began:.1f} s"
        )


def _train(framework: str, *settings: str) -> bytes:
    """Train a small network on random numbers; returns the file of the model."""
    from hsfl.api.run_calls import run  # here, because torch takes seconds to load
    from hsfl.data.from_python import dataset
    from hsfl.rng import stream
    from hsfl.runs.progress import Observer

    rng = stream(0, "doctor")
    data = dataset(rng.normal(size=(60, 6)), rng.integers(0, 3, 60), classes=["a", "b", "c"])
    with tempfile.TemporaryDirectory(prefix="hsfl-doctor-") as folder:
        result = run(
            None,
            Path(folder) / framework,
            [*SETTINGS, *settings, f"framework={framework}"],
            data=data,
            model="mlp",
            observer=Observer(),
            report=False,
        )
        if result.status != "finished":
            raise RuntimeError(f"the run of {framework} ended as {result.status}")
        return (result.folder / "model.safetensors").read_bytes()
