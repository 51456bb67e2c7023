"""The parser lets in what was sent, and nothing else: mutated messages are refused in words, whatever the mutation."""

import os
import random

import numpy as np
import pytest
import torch

from hsfl.deploy.wire import frames
from hsfl.deploy.wire.client_messages import (
    Batch,
    Chunk,
    End,
    Evaluate,
    Evaluated,
    Gradient,
    Hello,
    OwnSpeeds,
    Ready,
    Round,
    Tallied,
    Welcome,
)
from hsfl.deploy.wire.frames import MAGIC, PREFIX, VERSION, WireError
from hsfl.deploy.wire.messages import KINDS, expect_any_message, expect_message, pack_message, unpack_message
from hsfl.deploy.wire.model_chunks import CHUNK_BYTES, Collector, chunks
from hsfl.deploy.wire.server_messages import Have, Open, Seat, Standing, Swap
from tests.naming import raises

NUM_MUTATIONS = int(os.environ.get("HSFL_FUZZ", "10000"))  # 100,000 by command

MESSAGES = (
    (Hello("ada"), {}),
    (Welcome(3, "{}", [1, 8, 8], 10, False), {}),
    (Ready("ab", [1, 2], OwnSpeeds(1e9, 1e6, 1e6, 1e6, 1e6, None), None), {}),
    (Round(1, "a", 2), {}),
    (Evaluate(1, "a", 2), {}),
    (Tallied(0, 1.5, [1, 0], [2, 1]), {}),
    (Evaluated(3), {}),
    (Batch(4), {"smashed": torch.randn(3, 2, 2), "labels": torch.arange(3)}),
    (Gradient(4, 0.1, 0.2), {"gradient": torch.randn(3, 2), "loss": torch.tensor(0.5)}),
    (End(5, 20, 1.5, 0.1, 0.2, 0.3), {}),
    (Chunk(0, 4), {"bytes": torch.arange(4, dtype=torch.uint8)}),
    (Standing("i", "f", [1, 2], [3, 3]), {}),
    (Open(1, "a", [Seat(0, "ada", 2, 10, 10), Seat(1, "bo", 3, 11, 4)], False), {}),
    (Have("i", [0], [0.5], [1], ["shape"], ["why"], 1, 2), {}),
    (Swap(1, "a", [0, 1], 1, 3), {}),
)


@pytest.mark.parametrize(("message", "tensors"), MESSAGES, ids=lambda part: type(part).__name__)
def test_what_is_sent_arrives(message: object, tensors: dict[str, torch.Tensor]) -> None:
    found, back = unpack_message(pack_message(message, tensors))
    assert found == message
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)


@pytest.mark.parametrize("dtype", frames.DTYPES.values(), ids=frames.DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (5,), (2, 3, 4)])
def test_tensors_of_every_type_and_shape_arrive(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).mul(3).to(dtype)
    _, back = unpack_message(pack_message(Batch(0), {"labels": tensor, "smashed": tensor}))
    assert torch.equal(back["smashed"], tensor)
    assert back["smashed"].shape == tensor.shape


def test_a_float_arrives_to_the_bit() -> None:
    total = float(np.nextafter(1 / 3, 1))
    found, _ = expect_message(pack_message(End(1, 1, total, 0.0, 0.0, 0.0)), End)
    assert found.loss_total == total


def test_mutated_messages_are_refused_or_are_whole_messages() -> None:
    """Nothing but a WireError comes out of the parser, and it takes no more memory than the message has."""
    rng, good = random.Random(0), [pack_message(message, tensors) for message, tensors in MESSAGES]
    refused = 0
    for _ in range(NUM_MUTATIONS):
        content = mutated(bytearray(rng.choice(good)), rng)
        try:
            message, tensors = unpack_message(content)
        except WireError:
            refused += 1
        else:
            assert type(message) in KINDS
            assert sum(tensor.nbytes for tensor in tensors.values()) <= len(content)
    assert refused > 0.5 * NUM_MUTATIONS


def mutated(content: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(content)) if content else 0
        kind = rng.randrange(6)
        if kind == 0 and content:
            content[at] = rng.randrange(256)
        elif kind == 1:
            del content[at : at + rng.randint(1, 16)]
        elif kind == 2:
            content[at:at] = rng.randbytes(rng.randint(1, 16))
        elif kind == 3:
            content = content[:at]
        elif kind == 4 and len(content) >= PREFIX.size:
            PREFIX.pack_into(
                content,
                0,
                MAGIC,
                VERSION,
                rng.choice(list(KINDS.values())),
                rng.getrandbits(32),
                rng.getrandbits(rng.randint(0, 32)),
            )
        else:
            content[at : at + 4] = rng.choice([b"1e99", b"-1  ", b"null", b"[[[[", b"NaN ", b"\xff\xff\xff\xff"])
    return bytes(content)


def header(**changes: object) -> bytes:
    """A batch whose tensor header is changed."""
    about = {"name": "smashed", "dtype": "float32", "shape": [2], "num_bytes": 8} | changes
    text, headers = b'{"step":0}', frames.to_json([about])
    return PREFIX.pack(MAGIC, VERSION, KINDS[Batch], len(text), len(headers)) + text + headers + bytes(8)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ("shorter",)),
        (PREFIX.pack(b"HTTP", 1, 1, 0, 0), ("does not begin", "HSFL")),
        (PREFIX.pack(MAGIC, VERSION + 1, 1, 0, 0), (f"version {VERSION + 1}", f"this side {VERSION}", "the same hsfl")),
        (PREFIX.pack(MAGIC, VERSION, 999, 0, 0), ("kind 999",)),
        (PREFIX.pack(MAGIC, VERSION, 1, 1 << 31, 0), ("claims",)),
        (header(shape=[3]), ("shape [3]", "not have 8 bytes")),
        (header(shape=[2**40, 2**40]), (f"shape {[2**40, 2**40]}", "not have 8 bytes")),
        (header(shape=[-1]), (".shape[0] is wrong", "at least 0")),
        (header(dtype="object"), ("is of 'object'",)),
        (header(num_bytes=7), ("do not account", "8 bytes")),
        (header(num_bytes=2**39), ("do not account", "8 bytes")),
        (header(codec="int8"), ("coded by 'int8'",)),
        (header(strides=[2]), ("shape [2]", "cannot have", "strides [2]")),
        (header(strides=[0]), ("cannot have", "strides [0]")),
        (header(strides=[2**39]), ("cannot have", f"strides [{2**39}]")),
        (header(strides=[]), ("cannot have", "strides []")),
        (header(strides=[1, 1]), ("cannot have", "strides [1, 1]")),
        (header(shape=[1, 2], strides=[-1, 1]), (".strides[0] is wrong", "at least 0")),
        (header(shape=[1, 2], strides=[2**41, 1]), ("strides[0] is wrong", "at most")),
        (header(shape=[1, 2], strides=[True, 1]), ("strides[0] is wrong", "a whole number")),
        (header(shape=[2], strides=[1] * 9), ("strides is wrong", "at most 8")),
        (header(more=1) + b"x", ("do not account", "9 bytes")),
        (pack_message(Hello("x" * 5000)), ("Hello",)),
    ],
)
def test_what_is_wrong_is_said(content: bytes, parts: tuple[str, ...]) -> None:
    with raises(WireError, *parts):
        unpack_message(content)


def test_a_message_of_another_kind_is_refused() -> None:
    with raises(WireError, "Hello", "Batch or End"):
        expect_any_message(pack_message(Hello("ada")), Batch, End)
    with raises(WireError, "tensors []"):
        expect_message(pack_message(Batch(0)), Batch, tensors=("smashed",))


def test_a_file_travels_in_chunks() -> None:
    content = np.random.default_rng(0).bytes(2 * CHUNK_BYTES + 5)
    collector = Collector(len(content))
    pieces = list(chunks(content))
    assert [collector.add(piece) for piece in pieces] == [False, False, True]
    assert b"".join(collector.pieces) == content
    assert Collector(0).add(next(chunks(b"")))


def test_chunks_out_of_order_and_too_many_are_refused() -> None:
    first, second = list(chunks(bytes(CHUNK_BYTES + 1)))
    with raises(WireError, "at most 10"):
        Collector(10).add(first)
    with raises(WireError, "byte 0"):
        Collector(1 << 30).add(second)
    collector = Collector(1 << 30)
    collector.add(first)
    with pytest.raises(WireError, match="where byte"):
        collector.add(first)
    short = Collector(1 << 30)
    short.add(pack_message(Chunk(0, 2), {"bytes": torch.zeros(1, dtype=torch.uint8)}))
    with raises(WireError, "2 bytes"):
        short.add(pack_message(Chunk(1, 2), {"bytes": torch.zeros(5, dtype=torch.uint8)}))
