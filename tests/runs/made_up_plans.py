"""A plan and runs of it made by hand: what `hsfl plan --out` and a main server would have left behind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hsfl.config import read_config
from hsfl.files import write_json
from hsfl.runs.run_folder.folder import RunFolder
from tests.report.fabricated import record

PHASES = ("client", "smashed", "server", "gradient", "model_up", "model_down")
SECONDS = {  # [K] of a plan, without waiting
    "client": [4.0, 2.0],
    "smashed": [1.0, 3.0],
    "server": [2.0, 1.0],
    "gradient": [0.5, 1.5],
    "model_up": [0.25, 0.5],
    "model_down": [0.25, 0.5],
}


def write_plan(
    folder: Path, cuts: Sequence[int], round_s: float, seconds: Any = None, names: Any = None, **more: Any
) -> Path:
    """A plan's folder. seconds: by phase, [K] each."""
    table = SECONDS if seconds is None else seconds
    clients = [
        {
            "client": k,
            "cut": cut,
            "name": names[k] if names else f"client {k}",
            "seconds": {phase: values[k] for phase, values in table.items()},
        }
        for k, cut in enumerate(cuts)
    ]
    plan = {"policy": "proposed", "cuts": list(cuts), "round_s": round_s, "clients": clients, "num_samples": 1} | more
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "plan.json", plan)
    return folder


def write_measured_run(
    folder: Path,
    cuts: Sequence[int],
    rounds_s: Sequence[float],
    seconds: Any = None,
    names: Any = None,
    settings: Sequence[str] = (),
    **changes: Any,
) -> Path:
    """The folder of a deployment. rounds_s: real seconds of its rounds. seconds: measured by phase, [K] each."""
    return write_rounds(
        folder,
        [
            record(
                round=number,
                cuts=list(cuts),
                sim_time_s=10.0 * number,
                wall_s=wall_s,
                measured=SECONDS | {"waiting": [0.0, 0.0]} if seconds is None else seconds,
                **changes,
            )
            for number, wall_s in enumerate(rounds_s, 1)
        ],
        names,
        settings,
    )


def write_rounds(folder: Path, records: Sequence[Any], names: Any = None, settings: Sequence[str] = ()) -> Path:
    run = RunFolder(folder)
    run.create(read_config(None, list(settings)))
    for one in records:
        run.append(one)
    count = len(records[0].cuts) if records else 0
    lists = ("num_samples", "cuts", "max_cut", "cpu_hz")
    write_json(
        run.clients_path,
        {name: [1] * count for name in lists}
        | {"class_counts": [[]] * count, "class_names": [], "max_power_w": [None] * count, "input_shape": [1]}
        | {"main_flops_per_s": 1.0, "names": names},
    )
    return folder
