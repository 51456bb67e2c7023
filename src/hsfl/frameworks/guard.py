"""What stands between a client's training and the average, where the settings ask for it: attackers, clipping, and other averages than the mean.

`CopyPerClient` calls a guard after a client has trained and when a round ends. Where no setting asks for anything there is no guard, and
nothing is called. Formulas are in `training.attack`, `training.clipping` and `training.order_statistics`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hsfl.config import RunConfig
from hsfl.models.state import Layout, UnitState
from hsfl.models.units import SplitModel
from hsfl.training.attack import HeadAttack, head_attack_of
from hsfl.training.clipping import Clip, clip_of, parameter_stretches
from hsfl.training.order_statistics import MEAN, write_average


@dataclass(frozen=True)
class Guard:
    """The attack that a run simulates, how long updates may be, and by which rule they are averaged."""

    head_attack: HeadAttack | None
    clip_to: Clip | None
    rule: str
    trim: float

    @classmethod
    def of(cls, config: RunConfig, model: SplitModel, layout: Layout) -> "Guard | None":
        """The guard of a run; None where no setting asks for one."""
        train, attacks = config.train, config.attack.kind not in (None, "label_flip")
        if not attacks and train.clip_norm is None and train.average == MEAN:
            return None
        head_attack = head_attack_of(config, parameter_stretches(model, layout))
        return cls(head_attack, clip_of(train.clip_norm, model, layout), train.average, train.trim)

    @property
    def keeps_updates(self) -> bool:
        """Whether every client's update is kept until the round ends."""
        return self.rule != MEAN

    def attack(self, client: int, round_index: int, sent: UnitState, head: UnitState) -> None:
        """Let a client change its trained head, if it attacks."""
        if self.head_attack is not None:
            self.head_attack.change(client, round_index, sent, head)

    def clip(self, sides: Sequence[tuple[UnitState, UnitState]]) -> None:
        """Scale a client's update down if it is too long. sides: the states that were sent and trained, of head and tail."""
        if self.clip_to is not None:
            factor = self.clip_to.factor(sum(self.clip_to.squared_norm(*side) for side in sides))
            for sent, trained in sides:
                self.clip_to.scale(sent, trained, factor)

    def average(self, after: UnitState, updates: Sequence[UnitState]) -> None:
        """Put the rule's average into units of the model, which hold the mean until then."""
        if self.keeps_updates:
            write_average(after, updates, self.rule, self.trim)
