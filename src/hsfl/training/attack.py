"""Simulated attackers: clients that change what they hold, and nothing else.

Labels are the client's at every cut. Of the model it holds its head: with a small cut there is little that it can spoil, with every
cut at num_units (FL) all of it. So but for `label_flip` the harm depends on the cut, and two runs with other cuts learn different
models. With u the update of the head's parameters and s the setting `attack.scale`, the head comes back as

    sign_flip      sent - s u
    scaled_update  sent + s u
    noise          sent + u + s rms(u) z, with z normal

Buffers come back as they are. The clients are drawn by the run's seed; a larger share has the attackers of a smaller one among it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hsfl.config import AttackConfig, RunConfig
from hsfl.models.state import UnitState
from hsfl.rng import stream, torch_seed
from hsfl.training.clipping import Stretches, parameter_pairs, scale_update, update_size


def attackers(config: RunConfig) -> frozenset[int]:
    """The clients that attack."""
    attack, num_clients = config.attack, config.fleet.num_clients
    if attack.kind is None:
        return frozenset()
    order = stream(config.seed, "attackers").permutation(num_clients).tolist()
    return frozenset(order[: round(attack.share * num_clients)])


@dataclass(frozen=True)
class LabelFlip:
    """Clients whose labels are counted from the other end: class c is class num_classes - 1 - c."""

    clients: frozenset[int]
    num_classes: int

    def flipped(self, client: int, labels: Tensor) -> Tensor:
        return self.num_classes - 1 - labels if client in self.clients else labels


@dataclass(frozen=True)
class HeadAttack:
    """Clients that change the update of their head before it is sent."""

    settings: AttackConfig
    seed: int
    clients: frozenset[int]
    stretches: Stretches

    def change(self, client: int, round_index: int, sent: UnitState, head: UnitState) -> None:
        """Change the trained head of a client, if it attacks. sent: the head that the client was sent."""
        if client not in self.clients:
            return
        kind, scale = self.settings.kind, self.settings.scale
        if kind == "noise":
            self._add_noise(client, round_index, sent, head)
        else:
            scale_update(self.stretches, sent, head, -scale if kind == "sign_flip" else scale)

    def _add_noise(self, client: int, round_index: int, sent: UnitState, head: UnitState) -> None:
        size = self.settings.scale * update_size(self.stretches, sent, head)
        generator = torch.Generator().manual_seed(torch_seed(self.seed, "attack noise", client, round_index))
        for _, numbers in parameter_pairs(self.stretches, sent, head):
            noise = torch.randn(len(numbers), generator=generator, dtype=torch.float64)
            numbers.add_((size * noise).to(numbers.device, numbers.dtype))


def head_attack_of(config: RunConfig, stretches: Stretches) -> HeadAttack | None:
    """The attack on heads that a run simulates; None where there is none."""
    if config.attack.kind in (None, "label_flip"):
        return None
    return HeadAttack(config.attack, config.seed, attackers(config), stretches)
