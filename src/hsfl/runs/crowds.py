"""What the files of a run hold of a large fleet: quantiles, the straggler and the drops, instead of a list over clients.

Legend: K clients, C classes, Q quantiles.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hsfl.data.partition import class_counts, sizes_of
from hsfl.formats import counted, quantiles
from hsfl.network.clock import PHASES, Timeline
from hsfl.network.devices import MANY_CLIENTS, Fleet
from hsfl.runs.records import ClientsCrowd
from hsfl.runs.round_records import RoundCrowd

Array = np.ndarray


def is_many(num_clients: int) -> bool:
    """Whether a fleet is so large that files hold quantiles over its clients instead of lists."""
    return num_clients > MANY_CLIENTS


def round_crowd(line: Timeline, cuts: Sequence[int]) -> RoundCrowd:
    """A round of a large fleet: quantiles over the clients that took part, and the phases of the straggler."""
    started, phase_s = np.flatnonzero(line.started), line.phase_s
    last = line.straggler
    return {
        "num_clients": len(line.started),
        "num_started": len(started),
        "num_kept": int(line.kept.sum()),
        "cuts": counted(np.asarray(cuts)[started]),
        "finish_s": quantiles(line.finish_s[started]),
        "waiting_s": quantiles(line.waiting_s[started]),
        "phases_s": {name: quantiles(phase_s[name][started]) for name in PHASES if phase_s[name].any()},
        "straggler_s": {}
        if last < 0
        else {name: float(phase_s[name][last]) for name in PHASES if phase_s[name][last] > 0},
    }


def told(says: dict[str, Any], num_clients: int) -> dict[str, Any]:
    """What a policy says of its answer, without lists over all clients: each becomes its quantiles."""
    short = {name: value for name, value in says.items() if name != "resources"}
    for name, value in short.items():
        if isinstance(value, list) and len(value) == num_clients:
            short[name] = quantiles(np.array(value, float))
    return short


def clients_crowd(
    indices: Sequence[Array], labels: Array, num_classes: int, fleet: Fleet, cuts: Sequence[int], max_cut: Array
) -> ClientsCrowd:
    """Data and devices of a large fleet. indices: [K], of each client's samples. max_cut: [K], as deep as each device
    can hold."""
    powers = fleet.max_power_w[~np.isnan(fleet.max_power_w)]
    return {
        "num_clients": fleet.num_clients,
        "num_samples": quantiles(sizes_of(indices)),
        "class_counts": class_counts(indices, labels, num_classes).sum(axis=0).tolist(),
        "cuts": counted(np.asarray(cuts)),
        "max_cut": counted(max_cut),
        "flops_per_s": quantiles(fleet.cpu_hz * fleet.flops_per_cycle),
        "max_power_w": quantiles(powers),
    }
