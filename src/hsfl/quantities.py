"""Quantities with units, such as 3.6GHz, 16GiB or 100Mbps: the one place that reads them.

`parse_quantity` turns the text into a number in base units; `parse_setting` does so for a setting whose name ends with a unit, such as
`cpu_hz`; `quantity_text` writes a number with its unit. `KINDS` lists the units of each kind of quantity.

A number without a unit is in the base unit of its kind. A small b is bits and a large B bytes, M is a million and Mi is
2^20; a small m is milli, which only watts and seconds know.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hsfl.errors import InputError

SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
BINARY_SCALES = {"ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
MOST = 1e30  # what lies beyond is a slip of the finger
SPELLINGS = {"K": "k", "g": "G", "t": "T"}  # of prefixes, besides their own
NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*)")


@dataclass(frozen=True)
class Kind:
    """How a quantity may be written: its units (each in base units), the prefixes that may stand before a unit, and the
    least amount that is accepted."""

    units: Mapping[str, float]
    example: str
    scales: Mapping[str, float]
    least: float = 1e-6
    least_bare: float = (
        0.0  # in base units: a smaller number without a unit was meant in another one, such as 100 (Mbps)
    )


_RATES = {"bps": 1.0, "b/s": 1.0, "bit/s": 1.0, "bits/s": 1.0, "Bps": 8.0, "B/s": 8.0, "byte/s": 8.0, "bytes/s": 8.0}
_BYTES = {"B": 8.0, "byte": 8.0, "bytes": 8.0}
_SIZES = SCALES | BINARY_SCALES
_FLOPS = ("FLOP/s", "FLOPs/s", "FLOPS", "FLOPs", "flop/s", "flops")
KINDS = {
    "cycles": Kind({"": 1.0, "Hz": 1.0, "hz": 1.0, "HZ": 1.0}, "5GHz", SCALES, least_bare=1e6),
    "compute": Kind({"": 1.0, **dict.fromkeys(_FLOPS, 1.0)}, "35 GFLOP/s", SCALES, least_bare=1e6),
    "memory": Kind(
        {"": 8.0, **_BYTES}, "1GB or 1GiB", _SIZES, least_bare=8e5
    ),  # a bare number is bytes, as people count memory
    "bits": Kind({"": 1.0, "b": 1.0, "bit": 1.0, "bits": 1.0, **_BYTES}, "1GiB or 8e9", _SIZES),
    "rate": Kind({"": 1.0, **_RATES}, "5Mbps or 1MB/s", _SIZES, least_bare=1e4),
    "power": Kind({"": 1.0, "W": 1.0}, "2W or 500mW", SCALES | {"m": 1e-3}, 1e-30),
    "seconds": Kind({"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}, "300s, 5min or 2h", {"": 1.0, "m": 1e-3}, 1e-30),
    "metres": Kind({"": 1.0, "m": 1.0}, "50m or 2km", {"": 1.0, "k": 1e3}, -MOST),
}
SUFFIXES = {"hz": "cycles", "bps": "rate", "bits": "bits", "w": "power", "s": "seconds", "m": "metres"}


def quantity_kind(field: str) -> str | None:
    """The kind of quantity that a field holds, from the end of its name: main_up_bps -> rate; None where it has no unit."""
    _, joint, last = field.rpartition("_")
    return SUFFIXES.get(last) if joint else None


def parse_quantity(kind: str, text: str, zero: bool = False, doubt: bool = False) -> float:
    """The quantity in base units: 5Mbps -> 5e6. The error says what is wrong and shows an example; the caller adds the
    setting and its value.

    zero: whether 0 may be given, as the lower end of a range. doubt: whether a small number without a unit is refused; where the
    field's name says the unit, there is no doubt.
    """
    kind_row = KINDS[kind]
    such_as = f"such as {kind_row.example}"
    match = NUMBER.fullmatch(text.strip())
    if match is None:
        raise InputError(f"give a number, {such_as}")
    amount = float(match[1]) * _unit_scale(kind_row, match[2].strip(), such_as)
    if doubt and not match[2].strip() and 0 < amount < kind_row.least_bare:
        raise InputError(f"{match[1]} of what? give its unit, {such_as}")
    if amount == 0 and (zero or kind_row.least <= 0):
        return 0.0
    if amount <= 0 < kind_row.least:
        raise InputError(f"give a number above 0, {such_as}")
    if not kind_row.least <= amount <= MOST:
        raise InputError(f"that is beyond any device; give a number {such_as}")
    return amount


def _unit_scale(kind_row: Kind, word: str, such_as: str) -> float:
    """What a prefix and a unit stand for, in base units; the unit may be left out, also behind a prefix."""
    if word in kind_row.units:
        return kind_row.units[word]
    for length in (2, 1):
        prefix, unit = SPELLINGS.get(word[:1], word[:1]) + word[1:length], word[length:]
        if prefix in kind_row.scales and unit in kind_row.units:
            return kind_row.scales[prefix] * kind_row.units[unit]
        if prefix in kind_row.scales and unit in ("b", "bit", "bits") and "B" in kind_row.units:
            raise InputError(f"bits or bytes? give bytes, {such_as}")
        if prefix in ("m", "mi") and unit in kind_row.units:
            raise InputError(f"m is milli, write M for a million, {such_as}")
    raise InputError(f"its unit {word!r} is unknown, give a number {such_as}")


def parse_setting(field: str, value: Any) -> Any:
    """The value of a setting, where text becomes a number if the setting's name ends with a unit; lists go item by
    item.

    [1GHz, 5GHz] on a command line is one text: its items have no quotes.
    """
    kind = quantity_kind(field)
    if kind is None or not isinstance(value, str | list | tuple):
        return value
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        value = [item for item in value[1:-1].split(",") if item.strip()]
    return (
        parse_quantity(kind, value, zero=True)
        if isinstance(value, str)
        else [parse_setting(field, item) for item in value]
    )


def quantity_text(amount: float, unit: str) -> str:
    """35e9, "FLOP/s" -> 35 GFLOP/s: three digits and a prefix."""
    scale, prefix = next(((s, p) for p, s in reversed(SCALES.items()) if amount >= s * 0.9995), (1.0, ""))
    return f"{amount / scale:.3g} {prefix}{unit}"
