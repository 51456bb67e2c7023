"""The end of a round, as two servers on measured links make it. The paper charges nothing for it, so every part is 0 unless it is given.

    open        cuts are planned, the round is opened at both servers, and clients are told their cuts
    swap        each server sends the other one its sums of the units that both hold, both ways at once
    average     each server sums what its clients trained, and divides
    test        the averaged model is tested, in the rounds that are tested
    checkpoint  the record and both servers' units are written

These seconds are in no client's phases: nobody trains meanwhile. The upload of the clients' heads and the distribution of the new ones are
phases of clients (`model_up`, `model_down`).

Legend: K clients, C cuts.
"""

from dataclasses import dataclass

import numpy as np

from hsfl.models.cost_table import CostTable
from hsfl.network.server_queue import QueuedTest

Array = np.ndarray
END_PARTS = ("open", "swap", "average", "test", "checkpoint")
SWAP_MESSAGES = 2  # the order with one server's sums, and the answer with the other's


@dataclass(frozen=True)
class RoundEnd:
    """How fast the servers are at the end of a round."""

    swap_bps: float | None = None  # between the servers, each way; None: sums take no time
    swap_delay_s: float = 0.0  # of a message between the servers, besides its bits
    open_s: float = 0.0
    average_s: float = 0.0  # for each client that is summed
    test_s: float = 0.0
    checkpoint_s: float = 0.0
    test_beside: int = (
        0  # batches of a test that the main server makes while the next round trains; 0: it ends the round
    )

    @property
    def _last_test_s(self) -> float:
        """Seconds of a test for which the round waits."""
        return 0.0 if self.test_beside else self.test_s

    def beside(self, tests: float) -> QueuedTest | None:
        """What the main server does beside a round that follows on so many tests."""
        if not self.test_beside or not self.test_s or not tests:
            return None
        return QueuedTest(tests * self.test_beside, self.test_s / self.test_beside)

    def swap_s(self, cost: CostTable, cuts: Array) -> float:
        """Seconds of the swap in a round of clients with these cuts: the units from the least cut to the deepest are common."""
        swapped_bits = cost.swapped_bits[cuts]  # rise with the cut
        bits = float(swapped_bits.max() - swapped_bits.min()) if len(cuts) else 0.0
        if not bits:
            return 0.0
        return SWAP_MESSAGES * self.swap_delay_s + (0.0 if self.swap_bps is None else bits / self.swap_bps)

    def apart_from_swap_s(self, num_clients: int, tests: float) -> float:
        """Seconds of the parts that cuts do not change. tests: how often a round is tested, in the mean."""
        return self.open_s + num_clients * self.average_s + tests * self._last_test_s + self.checkpoint_s

    def parts(self, cost: CostTable, cuts: Array, tests: float) -> dict[str, float]:
        """Seconds of each part, in the order in which they happen. cuts: of the clients that take part."""
        test_s = tests * self._last_test_s
        values = (
            self.open_s,
            self.swap_s(cost, cuts),
            len(cuts) * self.average_s,
            test_s,
            self.checkpoint_s,
        )
        return dict(zip(END_PARTS, values))
