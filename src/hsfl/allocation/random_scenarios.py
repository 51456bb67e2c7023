"""Random scenarios in the ranges of the paper: for examples, benchmarks and tests.

Legend: K clients, I subchannels, C = 11 cuts of a ResNet-18 on 32 x 32 images (stem, eight blocks, classifier).
"""

import numpy as np

from hsfl.allocation.scenario import Scenario

Array = np.ndarray

# Forward multiply-adds, parameters and output values of each unit, counted by hand from the layer shapes.
_MACS = np.array([2.41e6, 4.72e6, 4.72e6, 3.67e6, 4.72e6, 3.67e6, 4.72e6, 3.67e6, 4.72e6, 5.1e3])
_PARAMETERS = np.array([9.5e3, 74e3, 74e3, 230e3, 295e3, 919e3, 1.18e6, 3.67e6, 4.72e6, 5.1e3])
_VALUES = np.array([4096, 4096, 4096, 2048, 2048, 1024, 1024, 512, 512, 0])


def _resnet18_costs(bits: int = 32) -> dict[str, Array]:
    """Cost arrays [C] by name; the backward pass costs twice the forward pass, and a multiply-add is two FLOPs."""
    client = np.concatenate([[0.0], np.cumsum(_MACS * 6)])
    smashed = np.concatenate([[3 * 32 * 32], _VALUES]) * float(bits)
    gradient = smashed.copy()
    gradient[0] = 0.0
    return {
        "client_flops": client,
        "server_flops": client[-1] - client,
        "smashed_bits": smashed,
        "gradient_bits": gradient,
        "model_bits": np.concatenate([[0.0], np.cumsum(_PARAMETERS)]) * bits,
    }


def gains(rng: np.random.Generator, *shape: int, floor: float = 0.01) -> Array:
    """Power gains abs(h) with h ~ N(0, 1), at least `floor`."""
    return np.maximum(np.abs(rng.standard_normal(shape)), floor)


def random_scenario(
    rng: np.random.Generator,
    num_clients: int,
    num_subchannels: int,
    sharing: str = "exclusive",
    tau_s: float | None = None,
) -> Scenario:
    """The paper's radio and machines, and unequal clients: each can hold 3 to 10 units and has 5 to 40 mini-batches."""
    size = num_clients
    return Scenario(
        batch_size=256,
        tau_s=tau_s,
        sharing=sharing,
        **_resnet18_costs(),
        cpu_hz=rng.uniform(0.05e10, 10e10, size),
        client_flops_per_cycle=np.ones(size),
        max_power_w=rng.uniform(1, 10, size),
        max_cut=rng.integers(3, 11, size),
        num_batches=rng.integers(5, 41, size).astype(float),
        min_cut=1,
        main_hz=100e10,
        server_flops_per_cycle=1.0,
        main_power_w=100.0,
        edge_power_w=100.0,
        subchannel_hz=1e6,
        noise_w=1e-3,
        main_gain=gains(rng, size, num_subchannels),
        edge_gain=gains(rng, size, num_subchannels),
    ).checked()
