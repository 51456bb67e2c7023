"""A cost table under codecs: what a cut costs when its messages are coded.

A row of a cost table is a cut. Under codecs it is a cut with its codecs, and everything that reads rows (clocks, allocation, the search for
cuts) reads these as it reads the others: bits of smashed data, gradients and the model's upload are those of the coded messages, and the
operations of encoding and decoding are added to the FLOPs of whoever does them.

Sizes that depend on the data (top-k's) are the largest that may be sent; what a run sends is in its bytes. Scales that all samples of a
batch share are charged to full batches. The operations of coding a head happen once a round and are not charged: they are a few for each
weight, which a single sample's step exceeds. Where a machine's codecs were timed (`hsfl measure`, or a device that joins) coding takes what it
took, in FLOPs at the machine's speed; else the operations that the codec's row states.

Where a planner chooses codecs with cuts (`link.allowed`), the table has a block of all cuts for each codec, one after another, and every reader
of rows chooses among all of them without knowing of codecs.

How many points of accuracy a codec costs comes from a file of measurements (`link.points`), one number for each codec and cut. Points of
several clients do not add up, so `link.max_points` judges each row by itself.

Legend: C = num_units + 1 cuts.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.codec_table import (
    CodecChoice,
    LinkChoices,
    LinkSettings,
    allowed_links,
    checked_size,
    choice_text,
    link_text,
    pair_text,
    read_pair,
    used_codecs,
)
from hsfl.errors import InputError
from hsfl.models.cost_table import BITS_PER_BYTE, CostTable
from hsfl.network.latency import UnitWork

Array = np.ndarray
CODED = (
    "client_forward_flops",
    "client_backward_flops",
    "server_forward_flops",
    "server_backward_flops",
    "smashed_bits",
    "gradient_bits",
    "model_bits",
)
UNCODED = ("param_bits", "memory_bits")  # the same whatever the codec
POINTS_FIELDS = ("codec", "cut", "points")


Coding = Mapping[str, tuple[Array | float, Array | float]]  # to encode and decode a number, by codec; arrays [K, 1]


@dataclass(frozen=True)
class CodingWork:
    """Operations of encoding and decoding for a sample, [C]."""

    client: UnitWork  # smashed data are encoded, gradients decoded
    server: UnitWork  # smashed data are decoded, gradients encoded


def coded_cost(cost: CostTable, choices: LinkChoices, batch_size: int) -> CostTable:
    """The table with these codecs. batch_size: of full batches."""
    if not choices.lossy:
        return cost
    shapes, param_sizes = _shapes(cost), _param_sizes(cost)
    work = coding_work(cost, choices)
    return replace(
        cost,
        client_forward_flops=cost.client_forward_flops + work.client.forward,
        client_backward_flops=cost.client_backward_flops + work.client.backward,
        server_forward_flops=cost.server_forward_flops + work.server.forward,
        server_backward_flops=cost.server_backward_flops + work.server.backward,
        smashed_bits=_message_bits(choices.up, cost.smashed_bits, shapes, batch_size),
        gradient_bits=_message_bits(choices.down, cost.gradient_bits, shapes, batch_size),
        model_bits=_upload_bits(choices.model, cost, param_sizes),
        model_down_bits=cost.down_bits,
        smashed_shapes=None,
        param_sizes=None,  # so that no codec is charged twice
    )


def cost_of_rows(cost: CostTable, links: Sequence[LinkChoices], batch_size: int) -> CostTable:
    """The table whose rows are cuts with codecs: a block of all cuts for each of these links."""
    tables = [coded_cost(cost, choices, batch_size) for choices in links]
    if len(tables) == 1:
        return tables[0]
    joined: dict[str, Any] = {name: np.concatenate([getattr(table, name) for table in tables]) for name in CODED}
    joined["model_down_bits"] = np.concatenate([table.down_bits for table in tables])
    same: dict[str, Any] = {
        name: np.tile(column, len(tables)) for name in UNCODED if (column := getattr(cost, name)) is not None
    }
    same["sum_bits"] = np.tile(cost.swapped_bits, len(tables))
    return CostTable(**joined, **same, batch_size=cost.batch_size, num_blocks=len(tables))


def work_of_rows(
    cost: CostTable, links: Sequence[LinkChoices], measured: UnitWork | None, side: str, coding: Coding | None = None
) -> UnitWork | None:
    """What measured units take at each row, with the coding; side: client or server. coding: FLOPs for each number, where codecs were timed."""
    if measured is None:
        return None
    blocks = [
        _with_coding(measured, getattr(coding_work(cost, choices, coding), side) if choices.lossy else None)
        for choices in links
    ]
    if len(blocks) == 1:
        return blocks[0]
    columns = zip(*((block.forward, block.backward) for block in blocks))
    return UnitWork(*(np.concatenate(column, axis=-1) for column in columns))


def _with_coding(measured: UnitWork, coding: UnitWork | None) -> UnitWork:
    return (
        measured if coding is None else UnitWork(measured.forward + coding.forward, measured.backward + coding.backward)
    )


def link_notes(link: LinkSettings) -> list[str]:
    """What a plan says of the codecs of a config."""
    text, allowed = link_text(link), allowed_links(link).values()
    if text is None:
        return []
    charged = (
        f"messages are charged as {text} makes them"
        if len(allowed) == 1
        else f"codecs were chosen with cuts, from {text}"
    )
    notes = [f"{charged}; {_points_words(link)}"]
    if any(choice is not None and choice.row.depends_on_data for pair in allowed for choice in (pair.up, pair.down)):
        notes.append("the size of a coded message depends on the data; it is charged as the most that is sent")
    return notes


def _points_words(link: LinkSettings) -> str:
    """What is known of the points of accuracy that codecs cost."""
    if link.points is None:
        return "what that costs in accuracy is not measured here, and for you to measure (link.points, docs/codecs.md)"
    measured = ", ".join(
        f"{text} at cut {cut} {points:g}" for (text, cut), points in sorted(read_points(link.points).items())
    )
    limit = (
        "leaves out no codec, since link.max_points is not set"
        if link.max_points is None
        else f"up to {link.max_points:g} are allowed"
    )
    return f"points of accuracy by {link.points}, which do not add up over clients: {measured}; {limit}"


def rows_within_points(link: LinkSettings, cost: CostTable) -> Array | None:
    """The rows [C of every block] whose measured points are at most `link.max_points`; None where no limit is set. What is not coded costs
    nothing: all rows without a codec, and the last cut, at which nothing travels."""
    if link.max_points is None:
        return None
    measured = {} if link.points is None else read_points(link.points)
    rows = [
        not (choices.up or choices.down)
        or cut == cost.num_units
        or measured.get((text, cut), math.inf) <= link.max_points
        for text, choices in allowed_links(link).items()
        for cut in cost.cuts
    ]
    return np.array(rows)


def read_points(path: str) -> dict[tuple[str, int], float]:
    """The points of accuracy that each codec costs at each cut, as a file of measurements has them."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"link.points={path} cannot be read ({error}); give a CSV file with {', '.join(POINTS_FIELDS)}"
        ) from None
    points: dict[tuple[str, int], float] = {}
    for number, row in enumerate(rows, start=2):
        where = f"link.points={path}, line {number}"
        text, *number_texts = (row.get(name) or "" for name in POINTS_FIELDS)
        try:
            cut, cost_points = int(number_texts[0]), float(number_texts[1])
        except ValueError:
            cut, cost_points = -1, math.nan
        if cut < 0 or not math.isfinite(cost_points):
            raise InputError(
                f"{where}: cut is {number_texts[0]!r} and points {number_texts[1]!r}; give a cut, and how many points its codec costs"
            )
        key = (pair_text(read_pair(where, text)), cut)
        if key in points:
            raise InputError(f"{where}: codec {text} at cut {cut} stands there twice; keep one of them")
        points[key] = cost_points
    return points


def coding_work(cost: CostTable, choices: LinkChoices, coding: Coding | None = None) -> CodingWork:
    """What encoding and decoding take for a sample. coding: as of `work_of_rows`."""
    numbers = np.array([float(prod(shape)) if shape else 0.0 for shape in _shapes(cost)])
    up, down = (
        (0.0, 0.0) if choice is None else (coding or {}).get(choice_text(choice), stated_operations(choice))
        for choice in (choices.up, choices.down)
    )
    there, back = numbers * (cost.smashed_bits > 0), numbers * (cost.gradient_bits > 0)
    return CodingWork(UnitWork(there * up[0], back * down[1]), UnitWork(there * up[1], back * down[0]))


def timed_coding(coding_s: Mapping[str, tuple[float, float]], flops_per_s: float) -> dict[str, tuple[float, float]]:
    """FLOPs at a machine's speed to encode and decode a number, by codec, from its seconds."""
    return {text: (encode_s * flops_per_s, decode_s * flops_per_s) for text, (encode_s, decode_s) in coding_s.items()}


def coding_of_clients(timed: Sequence[Mapping[str, tuple[float, float]]], link: LinkSettings) -> Coding:
    """The coding of several clients, [K, 1] by codec. timed: FLOPs for each number, [K]; where a client's codec was not timed, the stated ones."""
    coding = {}
    for choice in used_codecs(link):
        text, stated = choice_text(choice), stated_operations(choice)
        operations = np.array([client.get(text, stated) for client in timed])  # [K, 2]
        coding[text] = operations[:, :1], operations[:, 1:]
    return coding


def stated_operations(choice: CodecChoice) -> tuple[float, float]:
    """What encoding and decoding a number take by the codec's row."""
    return choice.row.encode_operations, choice.row.decode_operations


def _shapes(cost: CostTable) -> Sequence[tuple[int, ...]]:
    if cost.smashed_shapes is None:
        raise InputError(
            "the cost table has no smashed_shapes, by which codecs are charged; measure it again with hsfl cost, or set "
            "link.up, link.down and link.model to none"
        )
    return cost.smashed_shapes


def _param_sizes(cost: CostTable) -> Sequence[tuple[int, ...]]:
    if cost.param_sizes is None or cost.param_bits is None:
        raise InputError(
            "the cost table has no param_sizes or param_bits, by which codecs are charged; measure it again with hsfl cost"
        )
    return cost.param_sizes


def _message_bits(choice: CodecChoice | None, bits: Array, shapes: Sequence[tuple[int, ...]], batch_size: int) -> Array:
    """Bits of a sample's message, [C]. What has no shape, such as tokens, travels uncoded."""
    if choice is None:
        return bits
    coded = bits.copy()
    for cut, shape in enumerate(shapes):
        if shape and bits[cut]:
            number_bytes = round(float(bits[cut]) / BITS_PER_BYTE / prod(shape))
            coded[cut] = BITS_PER_BYTE * checked_size(choice, (batch_size, *shape), number_bytes) / batch_size
    return coded


def _upload_bits(choice: CodecChoice | None, cost: CostTable, param_sizes: Sequence[tuple[int, ...]]) -> Array:
    """Bits of a trained head on its way up, [C]: parameters coded one by one, buffers as they are."""
    count = sum(map(sum, param_sizes))
    if choice is None or not count or cost.param_bits is None:
        return cost.model_bits
    number_bytes = round(float(cost.param_bits[-1]) / BITS_PER_BYTE / count)
    coded_bytes = [sum(checked_size(choice, (size,), number_bytes) for size in unit) for unit in param_sizes]
    plain_bytes = [number_bytes * sum(unit) for unit in param_sizes]
    saved = np.concatenate([[0.0], np.cumsum(np.array(plain_bytes) - np.array(coded_bytes))])
    return cost.model_bits - BITS_PER_BYTE * saved
