"""What a client with a good certificate may send: every message at every method, whole, wild, broken off or with changed bytes."""

import asyncio
import json
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from typing import Any

import grpc
import torch

from hsfl.deploy.client_round import RoundWork
from hsfl.deploy.wire.client_messages import (
    Alive,
    Batch,
    Chunk,
    End,
    Enter,
    Evaluated,
    Fetch,
    Hello,
    Probe,
    Upload,
)
from hsfl.deploy.wire.frames import MAGIC, PREFIX, VERSION
from hsfl.deploy.wire.messages import KINDS, pack_message
from hsfl.models.state import UnitState

METHODS = (
    *(("main", name) for name in ("Attend", "Train", "Evaluate", "Probe", "Status")),
    *(("edge", name) for name in ("Fetch", "Upload", "Probe", "Swap", "Begin")),
)
NUMBERS = (0, -1, 1, 2**31, 2**53, 2**63, 1e300, -0.0, float("nan"), float("inf"), None, True, "7", [], {}, [2**60])
SHAPES = ((), (0,), (1,), (8,), (8, 3), (0, 2**20), (1,) * 8)
BATCH_SHAPE = (8, 16, 4, 4)  # of smashed data, where nobody says which
DTYPES = (torch.float32, torch.float64, torch.int64, torch.uint8)


class Wild:
    """A message with any fields."""

    def __init__(self, **named: Any) -> None:
        self.named = named


def frame(kind: int, text: bytes, header_text: bytes = b"", tensors: bytes = b"") -> bytes:
    return PREFIX.pack(MAGIC, VERSION, kind, len(text), len(header_text)) + text + header_text + tensors


def messages(rng: random.Random, attempt: str, shape: tuple[int, ...] = BATCH_SHAPE) -> Iterator[bytes]:
    """Without an end. shape: of smashed data that are taken, so that some batches reach the step."""
    known = (
        *(Enter(attempt), Fetch(attempt), Upload(attempt), Hello("di"), Chunk(0, 10), Probe(1 << 20), Evaluated(0)),
        *(Batch(0), Batch(0), Batch(0), Batch(1), Batch(2**53), End(1, 8, None, 0.0, 0.0, 0.0), Alive()),
    )
    while True:
        kind = rng.choice(list(KINDS))
        named = {field.name: rng.choice((*NUMBERS, attempt, "di")) for field in fields(kind)}
        tensors = {
            name: torch.zeros(rng.choice(SHAPES), dtype=rng.choice(DTYPES))
            for name in rng.sample(("smashed", "labels", "bytes", "load", "gradient"), rng.randrange(4))
        }
        if "smashed" in tensors and rng.random() < 0.5:
            smashed, label = rng.choice((1e38, -1e38, 1e19, 1.0)), rng.choice((0, 0, 9, 9, 10, -1, 2**62))
            tensors = {"smashed": torch.full(shape, smashed), "labels": torch.full(shape[:1], label)}
        wild = frame(KINDS[kind], json.dumps(named).encode())
        whole = pack_message(rng.choice(known), tensors)
        header = json.dumps(
            [{"name": "bytes", "dtype": "uint8", "shape": rng.choice(([2**40], [-1], [10], "x")), "num_bytes": 10}]
        ).encode()
        changed = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        safetensors = struct.pack("<Q", rng.choice((0, 2, 2**63, 40))) + rng.choice(
            (b"{}", b"[" * 40, b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}}')
        )
        piece = torch.frombuffer(bytearray(safetensors), dtype=torch.uint8)
        yield rng.choice(
            (
                wild,
                whole,
                bytes(changed),
                whole[: rng.randrange(len(whole))],
                frame(KINDS[Chunk], b'{"at":0,"total":10}', header, bytes(10)),
                frame(rng.randrange(2**16), b"[" * 1000),
                frame(KINDS[kind], b'{"' + b"a" * 10_000 + b'":1}'),
                pack_message(Chunk(0, len(safetensors)), {"bytes": piece}),
                rng.randbytes(rng.randrange(200)),
                b"",
            )
        )


def opening(method: str, attempt: str) -> bytes | None:
    """What lets the messages after it in."""
    first = {
        "Train": Enter(attempt),
        "Evaluate": Enter(attempt),
        "Upload": Upload(attempt),
        "Fetch": Fetch(attempt),
        "Attend": Hello("di"),
    }
    return pack_message(first[method]) if method in first else None


def barrage(num_calls: int, seed: int) -> Callable[[RoundWork, UnitState], Any]:
    """A deed of a hostile client: so many calls, some of which are left open."""

    async def deed(work: RoundWork, head: UnitState) -> None:
        rng, attempt = random.Random(seed), work.job.order.attempt
        shape = (work.setup.kit.config.train.batch_size, *work.setup.kit.shapes[work.job.order.cut])
        content, channels = messages(rng, attempt, shape), await work.channels()
        left_open = []
        for _ in range(num_calls):
            server, method = rng.choice(METHODS)
            call = getattr(channels, server).stream(method)
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError, asyncio.TimeoutError):
                async with asyncio.timeout(0.2):
                    if (first := opening(method, attempt)) is not None and rng.random() < 0.7:
                        await call.write(first)
                    for _ in range(rng.randrange(4)):
                        await call.write(next(content))
                    if rng.random() < 0.5:
                        await call.done_writing()
                        await call.read()
            if rng.random() < 0.8:
                call.cancel()
            else:
                left_open.append(call)
        for call in left_open:
            call.cancel()

    return deed
