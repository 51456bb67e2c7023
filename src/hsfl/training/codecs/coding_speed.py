"""How long this machine takes to encode and decode a number of a message, measured codec by codec."""

import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial

import torch

from hsfl.codec_table import CodecChoice, choice_text
from hsfl.rng import stream
from hsfl.training.codecs.link_codecs import make_codec

CODING_S = 0.1  # for which each codec is timed
WARM_UP = 2  # turns that are not counted: memory is found
LEAST_TURNS = 5
MOST_NUMBERS = 1 << 20  # of a message: from some hundred thousand on, seconds grow with the numbers


def coding_seconds(
    choices: Iterable[CodecChoice],
    shape: tuple[int, ...] | None,
    direction: str,
    seconds: float = CODING_S,
    clock_s: Callable[[], float] = time.perf_counter,
) -> dict[str, tuple[float, float]]:
    """Seconds to encode and to decode one number, by the text of the codec: medians over turns on a message of random numbers.

    shape: of a batch's smashed data, of which fewer samples are taken where they are many numbers; None: there are none. direction: in which this
    machine encodes. seconds: for each codec.
    """
    if shape is None:
        return {}
    sample = max(1, torch.Size(shape[1:]).numel())
    tensor = torch.randn((max(1, min(shape[0], MOST_NUMBERS // sample)), *shape[1:]))
    draws, by_text = partial(stream, 0, "codec", direction, 0, 0, 0), dict[str, tuple[float, float]]()
    for choice in choices:
        codec, took, began_s = make_codec(choice), list[tuple[float, float]](), clock_s()
        assert codec is not None
        while len(took) < WARM_UP + LEAST_TURNS or clock_s() - began_s < seconds:
            first_s = clock_s()
            payload = codec.encode(tensor, direction, draws)
            encoded_s = clock_s()
            codec.decode(payload, tensor.shape, tensor.dtype)
            took.append((encoded_s - first_s, clock_s() - encoded_s))
        encode_s, decode_s = (statistics.median(column) / tensor.numel() for column in zip(*took[WARM_UP:]))
        by_text[choice_text(choice)] = encode_s, decode_s
    return by_text
