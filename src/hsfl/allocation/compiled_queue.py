"""Rounds on a main server that is one queue, compiled: `network.server_queue.queued_round` with the same numbers to the bit."""

from hsfl.allocation.numba_cache import compiled
from hsfl.network.server_queue import QueuedRound, QueuedWork, serve_batches, service_arguments

serve_batches_compiled = compiled(serve_batches)


def queued_round_compiled(work: QueuedWork, order: str) -> QueuedRound:
    """The round, event by event."""
    return QueuedRound(*serve_batches_compiled(*service_arguments(work, order)))
