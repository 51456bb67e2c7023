"""A cost table under codecs: what a cut costs when its messages are coded.

A row of a cost table is a cut. Under codecs it is a cut with its codecs, and everything that reads rows (clocks, allocation, the search for
cuts) reads these as it reads the others: bits of smashed data, gradients and the model's upload are those of the coded messages, and the
operations of encoding and decoding are added to the FLOPs of whoever does them.

Sizes that depend on the data (top-k's) are the largest that may be sent; what a run sends is in its bytes. Scales that all samples of a
batch share are charged to full batches. The operations of coding a head happen once a round and are not charged: they are a few for each
weight, which a single sample's step exceeds.

Legend: C = num_units + 1 cuts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from hsfl.codec_table import CodecChoice, LinkChoices, LinkSettings, checked_size, link_choices
from hsfl.errors import InputError
from hsfl.models.cost_table import BITS_PER_BYTE, CostTable
from hsfl.network.latency import UnitWork

Array = np.ndarray


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


def link_notes(link: LinkSettings) -> list[str]:
    """What a plan says of the codecs of a config."""
    choices = link_choices(link)
    if not choices.lossy:
        return []
    notes = [
        f"messages are charged as {choices.text()} makes them; what that costs in accuracy is for you to measure (docs/codecs.md)"
    ]
    if any(choice is not None and choice.row.depends_on_data for choice in (choices.up, choices.down)):
        notes.append("the size of a coded message depends on the data; it is charged as the most that is sent")
    return notes


def coding_work(cost: CostTable, choices: LinkChoices) -> CodingWork:
    """What encoding and decoding take for a sample."""
    numbers = np.array([float(prod(shape)) if shape else 0.0 for shape in _shapes(cost)])
    up, down = (
        (0.0, 0.0) if choice is None else (choice.row.encode_operations, choice.row.decode_operations)
        for choice in (choices.up, choices.down)
    )
    there, back = numbers * (cost.smashed_bits > 0), numbers * (cost.gradient_bits > 0)
    return CodingWork(UnitWork(there * up[0], back * down[1]), UnitWork(there * up[1], back * down[0]))


def added_work(measured: UnitWork | None, coding: UnitWork) -> UnitWork | None:
    """What units take where they were measured, with the coding; nothing where they were not, since the table's FLOPs have it then."""
    if measured is None:
        return None
    return UnitWork(measured.forward + coding.forward, measured.backward + coding.backward)


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
