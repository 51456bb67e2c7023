"""Rounds and run folders made by hand, as a run would have left them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.config import RunConfig, read_config
from hsfl.files import write_json
from hsfl.framework_table import METHODS
from hsfl.network import clock
from hsfl.network.clock import PHASES, Timeline
from hsfl.network.latency import Phases
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.runs.run_folder.records import RoundRecord


def record(round: int = 1, accuracy: float | None = 0.5, **changes: Any) -> RoundRecord:
    """A round of two clients that lasts ten seconds."""
    values = {
        "round": round,
        "framework": "hsfl",
        "wall_s": 0.1,
        "num_samples": 100,
        "train_loss": 2.0 / round,
        "test_loss": None if accuracy is None else 1.0 - accuracy,
        "test_accuracy": accuracy,
        "balanced_accuracy": accuracy,
        "recall": None,
        "lr": 0.1,
        "cuts": [1, 2],
        "kept": [0, 1],
        "bytes": {"client_main_up": 100, "edge_main": 10},
        "sim_time_s": 10.0 * round,
        "round_s": 10.0,
        "started": [0, 1],
        "dropped": [],
        "straggler": 0,
        "waiting_s": [0.0, 4.0],
        "phases": {"client_forward": {"start_s": [0.0, 0.0], "end_s": [10.0, 6.0]}},
        "allocation": {"policy": "even"},
    }
    return RoundRecord(**(values | changes))


def records(accuracies: Sequence[float | None], round_s: float = 10.0, **changes: Any) -> list[RoundRecord]:
    """Rounds of equal length with these accuracies."""
    return [
        record(number, accuracy, sim_time_s=round_s * number, round_s=round_s, **changes)
        for number, accuracy in enumerate(accuracies, 1)
    ]


def write_run(
    out: Path, label: str, seed: int, rounds: Sequence[RoundRecord], status: str | None = "finished", *settings: str
) -> RunFolder:
    """A run folder in its place below `out`; without a status it has no summary, as if under way. No file says whose folder is whose,
    so that the folder's name is the label."""
    folder = RunFolder(out / label.replace("%", "%25").replace("/", "%2F") / f"seed-{seed}")
    config: RunConfig = read_config(None, [f"seed={seed}", f"framework={label.split(',')[0]}", *settings])
    folder.create(config)
    for one in rounds:
        folder.append(one)
    if status is not None:
        write_json(folder.summary_path, {"status": status})
    return folder


def timed(timeline: Timeline, **changes: Any) -> RoundRecord:
    """The record of a round with this timeline."""
    num_clients = len(timeline.started)
    phases = {
        name: {"start_s": start_s.tolist(), "end_s": end_s.tolist()}
        for name, start_s, end_s in zip(PHASES, timeline.start_s, timeline.end_s)
        if (end_s > start_s).any()
    }
    return record(
        framework=timeline.framework,
        round_s=timeline.round_s,
        sim_time_s=timeline.round_s,
        cuts=changes.pop("cuts", [1] * num_clients),
        started=np.flatnonzero(timeline.started).tolist(),
        kept=np.flatnonzero(timeline.kept).tolist(),
        dropped=np.flatnonzero(timeline.dropped).tolist(),
        straggler=timeline.straggler if timeline.straggler >= 0 else None,
        waiting_s=timeline.waiting_s.tolist(),
        phases=phases,
        **changes,
    )


def a_timeline(name: str, num_clients: int, tau_s: float = np.inf, seed: int = 0, **options: Any) -> Timeline:
    """A round of the framework with phases drawn at random."""
    rng = np.random.default_rng(seed)
    seconds = rng.uniform(0.05, 1.0, (8, num_clients))
    idle = {"none": [0, 1, 4, 5, 6, 7], "whole": [1, 2, 3, 4], "any": []}[METHODS[name].timing.cut]
    seconds[idle] = 0.0
    names = (*clock.BATCH_PHASES, "model_up", "model_down")
    phases = Phases(**{f"{phase}_s": values for phase, values in zip(names, seconds)})
    if name == "cpsl":
        options["clusters"] = np.arange(num_clients) % 2
    if name == "locfedmix_sl":
        options["decoder_s"] = np.full(num_clients, 0.7)
    return clock.timeline(name, phases, 4.0, tau_s, **options)


def data_in(path: Path) -> dict:
    """The JSON of a page, as a browser finds it: up to the first end of the script element."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script', path.read_text("utf-8"), re.S)
    assert found
    return json.loads(found[1])
