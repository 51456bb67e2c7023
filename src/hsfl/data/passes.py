"""Passes of a client over its samples, and which of their batches belong to a round.

A client goes through its samples again and again: pass p = 0, 1, ... takes all of them in an order of its own, in N batches. The
batches of all passes form one endless list, and a round takes the next s of them, where s is `epochs` times N, rounded, and at
least 1. Round r takes the steps [r s, (r + 1) s) of the list, whether the client took part in the rounds before or not: so the
round's number alone says where a client goes on, and nothing has to be remembered. With one epoch, round r is pass r.

Nothing here draws or holds samples, so that the clock, the planner and a server can count batches without having them.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

Array = np.ndarray


def batches_of_pass(num_samples: Array | float, batch_size: Array | float) -> Array:
    """N: how many batches a pass over so many samples makes. A single sample that is left over joins the batch before it, since
    BatchNorm cannot train on one sample; fewer samples than a batch make one smaller batch."""
    count = np.maximum(1, np.ceil(np.asarray(num_samples) / batch_size)).astype(int)
    return count - ((count > 1) & (num_samples - (count - 1) * batch_size == 1))


def steps_of_round(num_samples: Array | float, batch_size: Array | float, epochs: float) -> Array:
    """s: how many batches a client makes in a round of so many epochs, which may be a fraction."""
    return np.maximum(1, np.rint(epochs * batches_of_pass(num_samples, batch_size))).astype(int)


def samples_of_round(
    num_samples: Array | float, batch_size: Array | float, epochs: float, round_index: int | None = None
) -> Array:
    """How many samples a client trains in a round (0, 1, ...), each as often as it is trained; None: in the mean over all rounds.

    Rounds differ by the last batch of a pass, which is smaller (or larger by one) than the others.
    """
    per_pass, steps = batches_of_pass(num_samples, batch_size), steps_of_round(num_samples, batch_size, epochs)
    if round_index is None or float(epochs).is_integer():
        return num_samples * (steps / per_pass)
    passes_ended = (round_index + 1) * steps // per_pass - round_index * steps // per_pass
    last = num_samples - (per_pass - 1) * batch_size
    return steps * batch_size + passes_ended * (last - batch_size)


@dataclass(frozen=True)
class RoundSteps:
    """The batches of one client in one round: to which pass each belongs, and how many samples it has."""

    num_samples: int
    batch_size: int
    epochs: float
    round_index: int  # 0, 1, ...

    @cached_property
    def batches_of_pass(self) -> int:
        return int(batches_of_pass(self.num_samples, self.batch_size))

    @cached_property
    def count(self) -> int:
        """How many batches the round has."""
        return int(steps_of_round(self.num_samples, self.batch_size, self.epochs))

    @property
    def total_samples(self) -> int:
        """Over all batches of the round."""
        return round(float(samples_of_round(self.num_samples, self.batch_size, self.epochs, self.round_index)))

    def place(self, step: int) -> tuple[int, int]:
        """The pass, and the step within the pass, of a step (0, 1, ...) of the round."""
        return divmod(self.round_index * self.count + step, self.batches_of_pass)

    def size(self, step: int) -> int:
        """The samples of the batch of a step."""
        before = self.batches_of_pass - 1
        return self.num_samples - before * self.batch_size if self.place(step)[1] == before else self.batch_size
