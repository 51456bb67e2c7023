"""How fast the link to a server is: some bytes go up, some come down, and the client takes the time.

Empty messages, loads up and loads down take turns, so that all three meet the same moments of a busy machine, and the median of each counts. The
shortest would not do: of few tries the luckiest load and the unluckiest empty message gave rates that were 10 % too high.
"""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from grpc import aio

from hsfl.deploy.wire.client_messages import Probe
from hsfl.deploy.wire.messages import expect_any_message, pack_message
from hsfl.deploy.wire.transport import Peer, is_refusal
from hsfl.errors import InputError

PROBE_BYTES = 1 << 19
LEAST_TRIES = 3
MOST_TRIES = 30
CONNECT_S = 10.0


async def answer_probe(request: bytes, context: Any) -> bytes:
    """The handler of Probe at either server: answers with as many bytes as are asked for."""
    message, _ = expect_any_message(request, Probe)
    return pack_message(Probe(0), {"load": torch.zeros(message.answer_bytes, dtype=torch.uint8)})


@dataclass(frozen=True)
class LinkSpeed:
    """What a link was measured to do."""

    up_bps: float
    down_bps: float
    delay_s: float  # of a message besides its bits: half of what an empty one and its answer take


async def measure_link(peer: Peer, seconds: float = 0.0) -> LinkSpeed:
    """By tries for about so many seconds; those with a load less an empty message's."""
    load = {"load": torch.randint(256, (PROBE_BYTES,), dtype=torch.uint8)}
    requests = (pack_message(Probe(0)), pack_message(Probe(0), load), pack_message(Probe(PROBE_BYTES)))
    tries, began_s = list[list[float]](), time.perf_counter()
    while len(tries) < LEAST_TRIES or (len(tries) < MOST_TRIES and time.perf_counter() - began_s < seconds):
        tries.append([await _seconds_of_ask(peer, request) for request in requests])
    idle_s, up_s, down_s = map(median, zip(*tries))
    up_bps, down_bps = (8 * PROBE_BYTES / max(took_s - idle_s, 1e-5) for took_s in (up_s, down_s))
    return LinkSpeed(up_bps, down_bps, idle_s / 2)


def probe_link(address: str, name: str, certs: Path | None, server: str = "main", seconds: float = 0.0) -> LinkSpeed:
    """The link to a server that runs, main or edge, by tries for about so many seconds. name: the caller's. certs: its bundle; None for plaintext."""

    async def probe() -> LinkSpeed:
        peer = Peer(address, server, name, certs)
        try:
            await peer.ask("Probe", pack_message(Probe(0)), CONNECT_S)
            return await measure_link(peer, seconds)
        finally:
            await peer.close()

    try:
        return asyncio.run(probe())
    except aio.AioRpcError as error:
        refusal = f": {error.details()}" if is_refusal(error) else ""
        raise InputError(
            f"no link to the {server} server at {address}{refusal}; start it with hsfl serve {server}, and give the address that others use"
        ) from None


async def _seconds_of_ask(peer: Peer, request: bytes) -> float:
    began_s = time.perf_counter()
    await peer.ask("Probe", request)
    return time.perf_counter() - began_s
