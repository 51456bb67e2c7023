"""The fleets of the testbed, drawn by a seed and kept in a file that is committed before anything is measured, and the rules by which cut sets
follow from a plan."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.errors import InputError
from testbed_parts.machine import Node

Cuts = tuple[int, ...]
MOST_CPU = 1.5  # cores of all quotas together, so that two cores have room for the rest
MOST_S = 20.0  # the deepest cuts are not tried where their round is predicted to be longer
FLEETS_FILE = Path(__file__).parent.parent / "testbed_fleets.json"
RULES = {  # of cut sets; limits: a device's deepest cut
    "planned": "what hsfl plan proposes",
    "single": "the one cut for all whose predicted round is the shortest; a device that cannot hold it has its deepest",
    "ones": "cut 1 for all",
    "deep": f"each device as deep as it can hold, where the round is predicted to take at most {MOST_S:g} s",
    "near-1": "the planned cuts with one device, drawn, one unit deeper (shallower if it cannot)",
    "near-2": "the planned cuts with another device, drawn, one unit shallower (deeper if it cannot)",
    "fl": "another name of deep where every device can hold all units",
}


@dataclass(frozen=True)
class Client:
    """A device as it was drawn."""

    name: str
    cpu: float  # of a core
    up_mbps: float
    down_mbps: float
    delay_ms: float
    holds: float  # the part of a model's units that it can hold


@dataclass(frozen=True)
class Work:
    """What a fleet trains in a round."""

    batch_size: int
    batches: int  # of each client


@dataclass(frozen=True)
class Fleet:
    name: str
    bound: str  # what its rounds are meant to wait for: links, devices, server
    seed: int  # of its data and of the neighbours of its plan
    main_cpu: float
    clients: tuple[Client, ...]
    work: dict[str, Work]  # by model

    def nodes(self, slowdown: bool) -> list[Node]:
        """The machine's nodes. slowdown: the main server and the devices sleep in proportion instead of having a quota."""

        def speed(cpu: float) -> dict[str, float]:
            return {"slowdown": 1 / cpu} if slowdown else {"cpu": cpu}

        devices = [
            Node(
                client.name, up_bps=1e6 * client.up_mbps, down_bps=1e6 * client.down_mbps, delay_s=1e-3 * client.delay_ms,
                **speed(client.cpu),
            )
            for client in self.clients
        ]  # fmt: skip
        return [Node("main", **speed(self.main_cpu)), Node("edge"), *devices]

    def limits(self, num_units: int) -> Cuts:
        """[K] the deepest cut of each device."""
        return tuple(max(1, int(client.holds * num_units)) for client in self.clients)


# --- drawing

KINDS: dict[str, dict[str, tuple[float, float]]] = {  # ranges; rates and speeds are uniform in their logarithms
    "links": {"main": (0.4, 0.5), "cpu": (0.12, 0.2), "up": (6, 30), "down": (10, 60), "delay": (1, 15)},
    "devices": {"main": (0.5, 0.6), "cpu": (0.05, 0.2), "up": (40, 150), "down": (60, 200), "delay": (0, 4)},
    "server": {"main": (0.15, 0.25), "cpu": (0.12, 0.25), "up": (40, 150), "down": (60, 200), "delay": (0, 4)},
}
MODELS: dict[
    str, tuple[int, float, float]
] = {  # batch size, full-core seconds of a step, megabits of smashed data at a shallow cut
    "resnet18": (64, 0.17, 6.4),
    "cnn": (128, 0.04, 12.8),
}
TARGET_S = 6.0  # that a round should take
SMALL = Fleet(
    "small", "nothing", 3, 0.4,
    (Client("c1", 0.2, 30.0, 60.0, 0.0, 1.0), Client("c2", 0.3, 10.0, 20.0, 3.0, 1.0), Client("c3", 0.4, 60.0, 60.0, 0.0, 0.7)),
    {"cnn": Work(32, 8)},
)  # fmt: skip


def draw_fleets(seed: int, each: int) -> list[Fleet]:
    """So many fleets of each kind: in the first, third, ... every device can hold all units, in the others a part that is drawn."""
    return [
        draw_fleet(f"{kind}-{number}", kind, number % 2 == 0, np.random.default_rng((seed, place, number)))
        for place, kind in enumerate(KINDS)
        for number in range(1, each + 1)
    ]


def draw_fleet(name: str, kind: str, limited: bool, rng: np.random.Generator) -> Fleet:
    ranges, num_clients = KINDS[kind], int(rng.integers(4, 7))

    def drawn(what: str) -> np.ndarray:
        low, high = np.log(ranges[what])
        return np.exp(rng.uniform(low, high, num_clients))

    main_cpu, cpu = round(float(rng.uniform(*ranges["main"])), 2), drawn("cpu")
    cpu *= min(1.0, (MOST_CPU - main_cpu) / cpu.sum())
    up, down, delay = drawn("up"), drawn("down"), rng.uniform(*ranges["delay"], num_clients)
    holds = rng.uniform(0.3, 1.0, num_clients) if limited else np.ones(num_clients)
    clients = tuple(
        Client(f"c{k + 1}", _floor(cpu[k], 3), _floor(up[k], 1), _floor(down[k], 1), _floor(delay[k], 1), _floor(holds[k], 2))
        for k in range(num_clients)
    )  # fmt: skip
    work = {model: Work(MODELS[model][0], _num_batches(model, main_cpu, clients)) for model in MODELS}
    return Fleet(name, kind, int(rng.integers(1, 1000)), main_cpu, clients, work)


def _floor(value: float, digits: int) -> float:
    return float(np.floor(value * 10**digits) / 10**digits)


def _num_batches(model: str, main_cpu: float, clients: Sequence[Client]) -> int:
    """As many batches as make a round of about TARGET_S, roughly: where everybody has a shallow cut, by the busiest of server, devices
    and links."""
    _, step_s, smashed_mbit = MODELS[model]
    server_s = len(clients) * 0.85 * step_s / main_cpu
    alone_s = max(
        0.15 * step_s / client.cpu + smashed_mbit * (1 / client.up_mbps + 1 / client.down_mbps) for client in clients
    )
    return int(np.clip(TARGET_S / max(server_s, alone_s), 1, 60))


def write_fleets(path: Path, seed: int, fleets: Sequence[Fleet]) -> None:
    tree = {"seed": seed, "rules": RULES, "fleets": [asdict(fleet) for fleet in fleets]}
    path.write_text(json.dumps(tree, indent=1) + "\n")


def read_fleets(path: Path) -> dict[str, Fleet]:
    """The fleets of a file, by name."""
    try:
        rows = json.loads(path.read_text())["fleets"]
        fleets = [
            Fleet(**row | {"clients": tuple(Client(**client) for client in row["clients"]),
                           "work": {model: Work(**work) for model, work in row["work"].items()}})
            for row in rows
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no fleets ({error}); write it with python benchmarks/testbed.py draw") from None
    return {fleet.name: fleet for fleet in fleets}


# --- cut sets


def cut_sets(
    planned: Cuts, limits: Cuts, num_units: int, predicted_s: Callable[[Cuts], float], seed: int
) -> dict[Cuts, list[str]]:
    """The cut sets of RULES that differ, each with its names. limits: a device's deepest cut."""
    single = min(
        (tuple(min(cut, limit) for limit in limits) for cut in range(1, max(limits) + 1)), key=lambda cuts: (predicted_s(cuts), cuts)
    )  # fmt: skip
    sets = {"planned": planned, "single": single, "ones": (1,) * len(planned)}
    sets |= neighbours(planned, limits, np.random.default_rng(seed))
    if predicted_s(limits) <= MOST_S:
        sets |= {"deep": limits} | ({"fl": limits} if min(limits) == num_units else {})
    names: dict[Cuts, list[str]] = {}
    for name, cuts in sets.items():
        names.setdefault(cuts, []).append(name)
    return names


def neighbours(planned: Cuts, limits: Cuts, rng: np.random.Generator) -> Mapping[str, Cuts]:
    """The planned cuts with the cut of one device changed by a unit, twice."""
    movable = [k for k in range(len(planned)) if limits[k] > 1]
    chosen = rng.permutation(movable)[:2].tolist() if movable else []
    near = {}
    for number, (client, first) in enumerate(zip(chosen, (1, -1)), 1):
        moved = planned[client] + first
        cut = moved if 1 <= moved <= limits[client] else planned[client] - first
        near[f"near-{number}"] = (*planned[:client], cut, *planned[client + 1 :])
    return near


def schedule(sets: Sequence[Cuts], passes: int, rounds: int, seed: int) -> list[tuple[int, Cuts]]:
    """Which cuts each round has, with the number of its block: in each pass every set has one block of so many rounds, in another order."""
    rng, blocks = np.random.default_rng(seed), list[Cuts]()
    for _ in range(passes):
        order = [sets[place] for place in rng.permutation(len(sets))]
        if blocks and len(order) > 1 and order[0] == blocks[-1]:  # two blocks of a set that meet are one block
            order = [*order[1:], order[0]]
        blocks += order
    return [(number, cuts) for number, cuts in enumerate(blocks) for _ in range(rounds)]


def as_json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"
