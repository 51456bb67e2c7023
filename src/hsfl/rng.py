"""Randomness by name: one seed gives streams that never disturb each other.

A stream is keyed by words and numbers, for example `stream(seed, "batches", client, round)`. Nothing in HSFL draws from a global
generator that it has not seeded by such a key. So the optimiser's draws never move the data split, and frameworks see the same batches.
"""

import zlib

import numpy as np

Key = str | int


def _key_numbers(key: tuple[Key, ...]) -> list[int]:
    """The length comes first: a seed sequence takes missing numbers as zeros."""
    return [len(key)] + [zlib.crc32(item.encode()) if isinstance(item, str) else item for item in key]


def stream(seed: int, *key: Key) -> np.random.Generator:
    """An independent generator for this seed and key."""
    return np.random.default_rng(np.random.SeedSequence([seed, *_key_numbers(key)]))


def torch_seed(seed: int, *key: Key) -> int:
    """A 63-bit number for `torch.manual_seed`, for this seed and key."""
    return int(np.random.SeedSequence([seed, *_key_numbers(key)]).generate_state(1, np.uint64)[0] >> np.uint64(1))
