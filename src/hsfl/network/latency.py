"""How long each phase of a round takes: one function per equation, vectorised over clients and over samples.

Legend: K clients, I subchannels, N mini-batches of b samples; any leading axes (samples of the channel, candidate
cuts) broadcast. Zero bits or zero FLOPs take zero seconds, whatever the rate.
"""

from dataclasses import dataclass

import numpy as np

from hsfl.models.cost_table import CostTable

Array = np.ndarray
LN2 = np.log(2)


def rate_bps(power_w: Array, gain: Array, subchannel_hz: float, noise_w: float) -> Array:
    """Eq. (7): R = sum_i B log2(1 + p_i g_i / noise), [..., K, I] -> [..., K]. Unowned subchannels have no power."""
    snr = np.multiply(power_w, gain, dtype=float)
    snr *= 1 / noise_w
    return subchannel_hz / LN2 * sum_last(np.log1p(snr, out=snr))  # log1p: exact for weak signals too


def shared_rate_bps(power_w: Array, share: Array, gain: Array, subchannel_hz: float, noise_w: float) -> Array:
    """Eq. (7) with a fraction s of each subchannel: s B log2(1 + p g / (s noise)); noise scales with the band."""
    power_w, share, gain = np.asarray(power_w, float), np.asarray(share, float), np.asarray(gain, float)
    shape = np.broadcast_shapes(power_w.shape, share.shape, gain.shape)
    snr = np.divide(power_w * gain, share * noise_w, out=np.zeros(shape), where=share > 0)
    return subchannel_hz * (share * np.log1p(snr)).sum(axis=-1) / LN2


def sum_last(array: Array) -> Array:
    """`array.sum(axis=-1)`, which NumPy does slowly when the last axis is short and BLAS does not."""
    return array @ np.ones(array.shape[-1])


def duration_s(amount: Array | float, per_second: Array | float) -> Array:
    """amount / per_second, and 0 where there is nothing to do."""
    amount, per_second = np.asarray(amount, float), np.asarray(per_second, float)
    if per_second.min(initial=np.inf) > 0:
        with np.errstate(over="ignore"):  # whoever needs a finite time says so
            return amount / per_second
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(amount > 0, amount / per_second, 0.0)


@dataclass(frozen=True)
class Phases:
    """Seconds of each phase, [..., K]: the first six for one mini-batch, the model transfers once a round."""

    client_forward_s: Array
    smashed_s: Array  # U
    server_forward_s: Array
    server_backward_s: Array
    gradient_s: Array  # D
    client_backward_s: Array
    model_up_s: Array  # E
    model_down_s: Array  # M

    @property
    def client_s(self) -> Array:
        """A, Eq. (6)."""
        return self.client_forward_s + self.client_backward_s

    @property
    def server_s(self) -> Array:
        """S, Eq. (9)."""
        return self.server_forward_s + self.server_backward_s

    @property
    def batch_s(self) -> Array:
        return self.client_s + self.smashed_s + self.server_s + self.gradient_s


@dataclass(frozen=True)
class Rates:
    """Bits per second on each link, [..., K]."""

    main_up_bps: Array
    main_down_bps: Array
    edge_up_bps: Array
    edge_down_bps: Array


def phases(
    cost: CostTable,
    cuts: Array,
    batch_size: float | Array,
    client_flops_per_s: Array,
    server_flops_per_s: Array | float,
    rates: Rates,
) -> Phases:
    """Eqs. (6) and (8) to (11) for the clients' cuts [..., K]; speeds are cycles per second times FLOPs per cycle.

    The batch size is one number or one per client (PSL).
    """
    b = batch_size
    return Phases(
        client_forward_s=duration_s(b * cost.client_forward_flops[cuts], client_flops_per_s),
        smashed_s=duration_s(b * cost.smashed_bits[cuts], rates.main_up_bps),
        server_forward_s=duration_s(b * cost.server_forward_flops[cuts], server_flops_per_s),
        server_backward_s=duration_s(b * cost.server_backward_flops[cuts], server_flops_per_s),
        gradient_s=duration_s(b * cost.gradient_bits[cuts], rates.main_down_bps),
        client_backward_s=duration_s(b * cost.client_backward_flops[cuts], client_flops_per_s),
        model_up_s=duration_s(cost.model_bits[cuts], rates.edge_up_bps),
        model_down_s=duration_s(cost.down_bits[cuts], rates.edge_down_bps),
    )


def client_round_s(phases: Phases, num_batches: Array | float) -> Array:
    """N (A + U + S + D) + E: when each client's part of the round is over, [..., K]."""
    return num_batches * phases.batch_s + phases.model_up_s


def round_s(phases: Phases, num_batches: Array | float, tau_s: float = np.inf) -> Array:
    """Eq. (12): max_k min(N (A + U + S + D) + E, tau) + max_k M."""
    return np.minimum(client_round_s(phases, num_batches).max(axis=-1), tau_s) + phases.model_down_s.max(axis=-1)
