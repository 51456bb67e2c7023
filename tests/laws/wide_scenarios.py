"""Scenarios far beyond any machine or radio, inside what `scenario.RANGES` accepts, and some just outside.

Legend: K clients (1 to 8), I subchannels (1 to 10), C cuts. Every kind draws its numbers in another way:

    full    each number log-uniform over its whole range
    spread  around the paper's numbers, by up to 15 powers of ten either way
    pair    two fields at the ends of their ranges, the others as in the paper
    ends    everything at an end of its range or in its middle
    near    clients and subchannels that differ in the last digits only
"""

import numpy as np

from hsfl.allocation.measured_links import MeasuredRounds
from hsfl.allocation.scenario import RANGES, SIGNAL_TO_NOISE, Scenario, rows_between

KINDS = ("full", "spread", "pair", "ends", "near")
PAPER = {
    "cost.client_flops": 1e8, "cost.server_flops": 1e8, "cost.smashed_bits": 1e5, "cost.gradient_bits": 1e5,
    "cost.model_bits": 1e7, "clients.cpu_hz": 1e10, "clients.flops_per_cycle": 1.0, "clients.max_power_w": 3.0,
    "clients.num_batches": 20.0, "servers.main_hz": 1e12, "servers.flops_per_cycle": 1.0, "servers.main_power_w": 100.0,
    "servers.edge_power_w": 100.0, "channel.subchannel_hz": 1e6, "channel.noise_w": 1e-3, "signal": 1e4,
}  # fmt: skip


class Draw:
    """Numbers of one scenario: a kind, and what the kind decides once for all fields."""

    def __init__(self, rng, kind):
        self.rng, self.kind = rng, kind
        self.width = rng.choice([1, 3, 6, 12, 30])
        self.extreme = set(rng.choice(list(PAPER), 2, replace=False))

    def __call__(self, name, *shape):
        low, high = SIGNAL_TO_NOISE if name == "signal" else RANGES[name]
        rng, usual = self.rng, PAPER[name]
        if self.kind == "full":
            value = 10 ** rng.uniform(np.log10(low), np.log10(high), shape)
        elif self.kind == "spread":
            value = usual * 10 ** rng.uniform(-self.width / 2, self.width / 2, shape)
        elif self.kind == "pair" and name in self.extreme:
            value = rng.choice([low, high], shape if rng.random() < 0.5 else ()) * np.ones(shape)
        elif self.kind == "ends":
            value = rng.choice([low, high, usual, 3 * usual], shape)
        elif self.kind == "near":
            value = usual * 10 ** rng.uniform(-1, 1) * (1 + 10 ** rng.uniform(-16, -3) * rng.random(shape))
        else:
            value = usual * 10 ** rng.uniform(-1, 1, shape)
        return np.clip(value, low, high) if shape else float(np.clip(value, low, high))

    def costs(self, name, size):
        """With zeros among them: few, or every other one."""
        return np.where(self.rng.random(size) < self.rng.choice([0.1, 0.5]), 0.0, self(f"cost.{name}", size))


def wide_scenario(kind, seed):
    """A scenario, not checked, and cuts for it."""
    rng = np.random.default_rng([KINDS.index(kind), seed])
    draw, sharing = Draw(rng, kind), str(rng.choice(["exclusive", "bandwidth"]))
    K, C = int(rng.integers(1, 9)), int(rng.integers(2, 6))
    subs = int(rng.integers(K if sharing == "exclusive" else 1, 11))
    noise_w = draw("channel.noise_w")
    main_power_w, edge_power_w = draw("servers.main_power_w"), draw("servers.edge_power_w")
    cpu_hz = draw("clients.cpu_hz", K)
    if rng.random() < 0.2:  # one is slower than all the others together
        cpu_hz[rng.integers(K)] = RANGES["clients.cpu_hz"][0]
    max_power_w = draw("clients.max_power_w", K)
    if kind in ("full", "ends"):  # powers alike, or nearly every draw would be beyond SIGNAL_TO_NOISE
        max_power_w = np.clip(main_power_w * 10 ** rng.uniform(-2, 2, K), *RANGES["clients.max_power_w"])
        edge_power_w = float(np.clip(main_power_w * 10 ** rng.uniform(-2, 2), *RANGES["servers.edge_power_w"]))
    weakest_w, strongest_w = (f([main_power_w, edge_power_w, *max_power_w]) for f in (np.min, np.max))
    low, high = SIGNAL_TO_NOISE[0], SIGNAL_TO_NOISE[1] * weakest_w / strongest_w
    signals = [np.clip(draw("signal", K, subs), low * (1 + 1e-9), max(low, high) / (1 + 1e-9)) for _ in range(2)]
    gains = [np.clip(signal / weakest_w * noise_w, *RANGES["channel.main_gain"]) for signal in signals]
    scenario = Scenario(
        batch_size=int(10 ** rng.uniform(0, 9 if kind == "full" else 3)),
        tau_s=float(10 ** rng.uniform(-12, 30)) if rng.random() < 0.15 else None,
        sharing=sharing,
        client_flops=draw.costs("client_flops", C),
        server_flops=draw.costs("server_flops", C),
        smashed_bits=draw.costs("smashed_bits", C),
        gradient_bits=draw.costs("gradient_bits", C),
        model_bits=draw.costs("model_bits", C),
        cpu_hz=cpu_hz,
        client_flops_per_cycle=draw("clients.flops_per_cycle", K),
        max_power_w=max_power_w,
        max_cut=rng.integers(0, C, K),
        num_batches=draw("clients.num_batches", K),
        min_cut=0,
        main_hz=draw("servers.main_hz"),
        server_flops_per_cycle=draw("servers.flops_per_cycle"),
        main_power_w=main_power_w,
        edge_power_w=edge_power_w,
        subchannel_hz=draw("channel.subchannel_hz"),
        noise_w=noise_w,
        main_gain=gains[0],
        edge_gain=gains[1],
    )
    return scenario, rng.integers(0, scenario.max_cut + 1)


def wide_rounds(seed):
    """Measured links from 1e-30 to 1e40 seconds, with zeros and near ties; and cuts."""
    rng = np.random.default_rng(seed)
    K, C, S = rng.integers(1, 9), rng.integers(1, 6), rng.integers(1, 4)

    def table(low, high, *shape):
        middle, width = rng.uniform(low, high), rng.choice([0, 1, 5, 20, high - low])
        value = 10 ** np.clip(rng.uniform(middle - width, middle + width, shape), low, high)
        if rng.random() < 0.3:
            value = value.flat[0] * (1 + rng.choice([0, 1e-16, 1e-12, 1e-6]) * rng.random(shape))
        return np.where(rng.random(shape) < rng.choice([0, 0.2, 0.8]), 0.0, value)

    rounds = MeasuredRounds(
        own_s=table(-30, 40, S, K, C),
        work_cycles=table(-20, 60, K, C),
        down_s=table(-30, 40, S, K, C),
        rows=rows_between(0, rng.integers(0, C, K), C),
        main_hz=float(10 ** rng.uniform(0, 24)),
    )
    return rounds, rng.integers(0, rounds.rows.sum(axis=1))
