"""The numbers that the solver can compute with, field by field of a scenario."""

from typing import Any

import numpy as np

from hsfl.errors import InputError

Array = np.ndarray
# What the solver can compute with, by field: far beyond any machine or radio, far from overflow and lost digits. Within
# these, a bound is right to 1e-9 of itself, whatever the ratios (tests/allocation/test_allocation_wide.py).
RANGES = {
    "batch_size": (1, 1e9),
    "tau_s": (1e-12, 1e30),
    "cost.client_flops": (1e-9, 1e18),  # costs may be 0, too
    "cost.server_flops": (1e-9, 1e18),
    "cost.smashed_bits": (1e-9, 1e15),
    "cost.gradient_bits": (1e-9, 1e15),
    "cost.model_bits": (1e-9, 1e15),
    "clients.cpu_hz": (1e3, 1e24),
    "clients.flops_per_cycle": (1e-3, 1e9),
    "clients.max_power_w": (1e-9, 1e12),
    "clients.num_batches": (1e-6, 1e12),
    "servers.main_hz": (1, 1e24),
    "servers.flops_per_cycle": (1e-3, 1e9),
    "servers.main_power_w": (1e-9, 1e12),
    "servers.edge_power_w": (1e-9, 1e12),
    "channel.subchannel_hz": (1e-3, 1e18),
    "channel.noise_w": (1e-30, 1e12),
    "channel.main_gain": (1e-30, 1e30),
    "channel.edge_gain": (1e-30, 1e30),
}
SIGNAL_TO_NOISE = (1e-12, 1e24)  # of all power on one subchannel; weaker signals lose their digits


def check_range(name: str, number: Any) -> None:
    """An error where a number of the field `name`, or one of an array, is outside of the field's range."""
    value, (low, high), or_zero = _floats(number), RANGES[name], name.startswith("cost.")
    good = (value >= low) & (value <= high)
    bad = np.argwhere(~(good | (value == 0.0) if or_zero else good))
    if len(bad):
        where, most = "".join(f"[{i}]" for i in bad[0]), f"from {low:g} to {high:g}"
        wanted = f"0, or {most}" if or_zero else most
        raise InputError(f"{name}{where} is {float(value[tuple(bad[0])])}; it must be {wanted}")


def _floats(value: Any) -> Array:
    try:
        return np.asarray(value, float)
    except OverflowError:  # a whole number of hundreds of digits
        return np.array(np.inf)
