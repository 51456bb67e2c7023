"""Which values the buffers of a model may have. A model whose numbers are all finite may still be none that training can give: a
negative variance makes every output NaN, a huge counter overflows the servers' sums.

The ranges follow from the model: BatchNorm layers (and InstanceNorm layers that keep statistics) are found by their type. A layer
of another type whose buffers have BatchNorm's names counts as one.
"""

from dataclasses import dataclass

import torch
from torch import nn

from hsfl.deploy.wire.frames import WireError
from hsfl.models.state import UnitState
from hsfl.models.units import SplitModel
from hsfl.training.aggregate import EXACT_INTEGERS

VARIANCE, COUNTER = "running_var", "num_batches_tracked"
MOST_CALLS = 100  # of one layer in a step: a model may use a layer again and again
MOST_INTEGER = EXACT_INTEGERS  # where nothing else bounds the integers of a model


@dataclass(frozen=True)
class LegalRanges:
    """The buffers of a model that have a legal range, by their names in the whole model."""

    variances: frozenset[str]  # at least 0
    counters: frozenset[str]  # of batches: at least 0, and no more than there were batches

    @classmethod
    def of(cls, model: SplitModel) -> "LegalRanges":
        variances, counters = set[str](), set[str]()
        for unit, prefix in zip(model.units, model.prefixes):
            for path, module in unit.named_modules():
                place = prefix + (f"{path}." if path else "")
                buffers = dict(module.named_buffers(recurse=False))
                if isinstance(module, nn.modules.batchnorm._NormBase) or buffers.keys() >= {VARIANCE, COUNTER}:
                    variances |= {place + VARIANCE} if buffers.get(VARIANCE) is not None else set()
                    counters |= {place + COUNTER} if buffers.get(COUNTER) is not None else set()
        return cls(frozenset(variances), frozenset(counters))

    def check(self, state: UnitState, before: UnitState | None = None, num_steps: int = 0, weight: float = 1.0) -> None:
        """Refuse a state with a buffer outside its legal range, or with integers that a sum cannot hold; the reason is `range`.

        before: the same units when the client got them; num_steps: batches that it has trained since. None: not known. weight: of
        all clients in the sum.
        """
        if len(state.ints):
            low, high = (int(end) for end in torch.aminmax(state.ints))
            if max(-low, high) > MOST_INTEGER / (2 * max(weight, 1.0)):
                raise WireError(
                    "range", f"a model with integers of {low} to {high}, which cannot be averaged to the digit"
                )
        named = state.named()
        earlier = {} if before is None else before.named()
        for name in self.variances & named.keys():
            if bool((named[name] < 0).any()):
                raise WireError("range", f"{name} holds {float(named[name].min()):.3g}, and a variance is at least 0")
        for name in self.counters & named.keys():
            count = int(named[name])
            most = int(earlier[name]) + MOST_CALLS * num_steps if name in earlier else None
            if count < 0 or (most is not None and count > most):
                limit = "at least 0" if most is None else f"0 to {most}"
                raise WireError("range", f"{name} is {count}, and a count of batches is {limit}")
