"""How fast the link to a server is: some bytes go up, some come down, and the client takes the time."""

import time
from typing import Any

import torch

from hsfl.deploy.wire.client_messages import Probe
from hsfl.deploy.wire.messages import expect_any_message, pack_message
from hsfl.deploy.wire.transport import Peer

PROBE_BYTES = 1 << 19
TRIES = 3


async def answer_probe(request: bytes, context: Any) -> bytes:
    """The handler of Probe at either server: answers with as many bytes as are asked for."""
    message, _ = expect_any_message(request, Probe)
    return pack_message(Probe(0), {"load": torch.zeros(message.answer_bytes, dtype=torch.uint8)})


async def measure_rates(peer: Peer) -> tuple[float, float]:
    """Bits per second up and down, by the shortest of a few tries less the shortest time of an empty message."""
    load = {"load": torch.randint(256, (PROBE_BYTES,), dtype=torch.uint8)}
    empty, up, down = pack_message(Probe(0)), pack_message(Probe(0), load), pack_message(Probe(PROBE_BYTES))
    idle_s, up_s, down_s = [await _shortest_ask(peer, request) for request in (empty, up, down)]
    return tuple(8 * PROBE_BYTES / max(took_s - idle_s, 1e-5) for took_s in (up_s, down_s))  # type: ignore[return-value]


async def _shortest_ask(peer: Peer, request: bytes) -> float:
    times = []
    for _ in range(TRIES):
        began_s = time.perf_counter()
        await peer.ask("Probe", request)
        times.append(time.perf_counter() - began_s)
    return min(times)
