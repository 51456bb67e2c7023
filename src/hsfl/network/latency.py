"""How long each phase of a round takes: one function per equation, vectorised over clients and over samples.

Legend: K clients, I subchannels, N mini-batches of b samples; any leading axes (samples of the channel, candidate
cuts) broadcast. Zero bits or zero FLOPs take zero seconds, whatever the rate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

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
    delay_s: Array | None = None  # of each message besides its bits; None: there is none

    def map(self, change: Callable[[Array], Array]) -> "Rates":
        """The rates with every array changed."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        return Rates(**{name: change(array) for name, array in arrays.items() if array is not None})


@dataclass(frozen=True)
class UnitWork:
    """What the units on one side of a cut take for a sample, in FLOPs at the holder's speed: [K, C] before the cut on clients, [C] after it on
    the main server. Measured unit by unit, since a stem can take three times as long as its FLOPs say; else the FLOPs of the cost table."""

    forward: Array
    backward: Array

    @staticmethod
    def before_cuts(
        forward_s: Sequence[float],
        backward_s: Sequence[float],
        sample_flops_per_s: float,
        step_s: float | None = None,
    ) -> "UnitWork":
        """Of a client, [C], from the seconds of each unit for a batch. sample_flops_per_s: its speed over the samples of a batch. step_s: of a
        client that holds all units, which never waits between forward and backward; None: the units' sum."""
        forward, backward = (np.cumsum([0.0, *unit_s]) * sample_flops_per_s for unit_s in (forward_s, backward_s))
        whole = forward[-1] + backward[-1]
        if step_s is not None and whole > 0:
            forward[-1], backward[-1] = (
                side[-1] * (step_s * sample_flops_per_s / whole) for side in (forward, backward)
            )
        return UnitWork(forward, backward)

    @staticmethod
    def after_cuts(forward_s: Sequence[float], backward_s: Sequence[float], sample_flops_per_s: float) -> "UnitWork":
        """Of the main server, [C]."""
        return UnitWork(
            *(np.cumsum([0.0, *unit_s[::-1]])[::-1] * sample_flops_per_s for unit_s in (forward_s, backward_s))
        )

    @staticmethod
    def of_clients(clients: Sequence["UnitWork"]) -> "UnitWork":
        """[K, C] from [C] each."""
        return UnitWork(np.stack([work.forward for work in clients]), np.stack([work.backward for work in clients]))

    def __getitem__(self, clients: Array | slice) -> "UnitWork":
        return UnitWork(self.forward[clients], self.backward[clients])

    @property
    def both(self) -> Array:
        return self.forward + self.backward

    def at(self, cuts: Array) -> tuple[Array, Array]:
        """Forward and backward at cuts [..., K]."""
        if self.forward.ndim == 1:
            return self.forward[cuts], self.backward[cuts]
        clients = np.arange(len(self.forward))
        return self.forward[clients, cuts], self.backward[clients, cuts]


def client_work(cost: CostTable, measured: UnitWork | None) -> UnitWork:
    return UnitWork(cost.client_forward_flops, cost.client_backward_flops) if measured is None else measured


def server_work(cost: CostTable, measured: UnitWork | None) -> UnitWork:
    return UnitWork(cost.server_forward_flops, cost.server_backward_flops) if measured is None else measured


def transfer_s(bits: Array | float, rate_bps: Array | float, delay_s: Array | None) -> Array:
    """Seconds of a message; nothing is sent where there are no bits."""
    sending_s = duration_s(bits, rate_bps)
    return sending_s if delay_s is None else np.where(np.asarray(bits) > 0, sending_s + delay_s, 0.0)


def phases(
    cost: CostTable,
    cuts: Array,
    batch_size: float | Array,
    client_flops_per_s: Array,
    server_flops_per_s: Array | float,
    rates: Rates,
    measured_client: UnitWork | None = None,
    measured_server: UnitWork | None = None,
) -> Phases:
    """Eqs. (6) and (8) to (11) for the clients' cuts [..., K]; speeds are cycles per second times FLOPs per cycle.

    The batch size is one number or one per client (PSL). measured_client, measured_server: where units were measured.
    """
    b, delay_s = batch_size, rates.delay_s
    client_forward, client_backward = client_work(cost, measured_client).at(cuts)
    server_forward, server_backward = server_work(cost, measured_server).at(cuts)
    return Phases(
        client_forward_s=duration_s(b * client_forward, client_flops_per_s),
        smashed_s=transfer_s(b * cost.smashed_bits[cuts], rates.main_up_bps, delay_s),
        server_forward_s=duration_s(b * server_forward, server_flops_per_s),
        server_backward_s=duration_s(b * server_backward, server_flops_per_s),
        gradient_s=transfer_s(b * cost.gradient_bits[cuts], rates.main_down_bps, delay_s),
        client_backward_s=duration_s(b * client_backward, client_flops_per_s),
        model_up_s=transfer_s(cost.model_bits[cuts], rates.edge_up_bps, delay_s),
        model_down_s=transfer_s(cost.down_bits[cuts], rates.edge_down_bps, delay_s),
    )


def client_round_s(phases: Phases, num_batches: Array | float) -> Array:
    """N (A + U + S + D) + E: when each client's part of the round is over, [..., K]."""
    return num_batches * phases.batch_s + phases.model_up_s


def round_s(phases: Phases, num_batches: Array | float, tau_s: float = np.inf) -> Array:
    """Eq. (12): max_k min(N (A + U + S + D) + E, tau) + max_k M."""
    return np.minimum(client_round_s(phases, num_batches).max(axis=-1), tau_s) + phases.model_down_s.max(axis=-1)


def training_end_s(seconds: Mapping[str, float]) -> float:
    """When a client's training and upload are over, from the seconds of its phases, which stand in the order in which they happen: over a radio
    the download of the model comes last, once all clients have ended, and on a server that is one queue it comes first."""
    names = list(seconds)
    return sum(seconds[name] for name in names[: names.index("model_up") + 1])
