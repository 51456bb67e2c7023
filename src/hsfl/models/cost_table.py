"""What every cut of a model costs: FLOPs, bits that travel and memory, as NumPy arrays indexed by cut.

A model is measured once; reading a table needs no torch.

Legend: C = num_units + 1 cuts, b samples in a mini-batch. A multiply-add is two FLOPs; only what
`torch.utils.flop_counter` counts is counted (matrix products, convolutions, attention), so BatchNorm, ReLU, pooling
and the loss are free, as in the published GMACs of a model.
"""

import copy
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.display import OnScreen, Rows, Screen
from hsfl.errors import InputError, shown_value
from hsfl.files import write_json

if TYPE_CHECKING:
    import torch

    from hsfl.models.units import SplitModel

Array = np.ndarray
BITS_PER_BYTE = 8
SUM_BITS = 64  # of a number in a sum, and of each unit's weight
MOST_SIDE, MOST_NUMBERS = 4096, 2**26  # of a sample
MOST_SIZE = 2**40  # of a side, or of a parameter
SIZES = ("smashed_shapes", "param_sizes")
ADAM_STATES = 2  # tensors of the parameters' size that the optimiser keeps; plain SGD 0, momentum 1


@dataclass(frozen=True, repr=False)
class CostTable(OnScreen):
    """Costs by cut, arrays of length C. FLOPs, smashed data and gradients are per sample, the other bits per client.

    `smashed_bits` is 0 at cut num_units; `gradient_bits` is 0 at cut 0 and at cut num_units. `param_bits` and
    `memory_bits` say what a client must store: the parameters alone (as the paper reads storage), or all that training
    a mini-batch of `batch_size` needs. A table written by hand may leave these two out.
    """

    client_forward_flops: Array  # [C]
    client_backward_flops: Array  # [C]
    server_forward_flops: Array  # [C]
    server_backward_flops: Array  # [C]
    smashed_bits: Array  # [C]
    gradient_bits: Array  # [C]
    model_bits: Array  # [C] the client side whole, parameters and buffers
    param_bits: Array | None = None  # [C] the client side's parameters
    memory_bits: Array | None = None  # [C] the client's memory to train a mini-batch
    batch_size: int | None = None  # the mini-batch of memory_bits
    model_down_bits: Array | None = (
        None  # [C] of the client side's download, where more or less than model_bits comes down
    )
    # What codecs are charged by (planning/coded_cost.py). A table written by hand may leave these out, too.
    smashed_shapes: tuple[tuple[int, ...], ...] | None = (
        None  # [C] of a sample's smashed data; empty where nothing travels, or whole numbers such as tokens
    )
    param_sizes: tuple[tuple[int, ...], ...] | None = None  # [num_units] the numbers in each parameter of a unit
    sum_bits: Array | None = None  # [C] the client side's sums, as the two servers swap them
    num_blocks: int = 1  # tables of all cuts, one after another: then a row is a cut in one of these blocks, and every array has them all. Never in a file

    def __post_init__(self) -> None:
        for name, length in (
            ("smashed_shapes", np.size(self.model_bits)),
            ("param_sizes", np.size(self.model_bits) - 1),
        ):
            object.__setattr__(self, name, _sizes(name, getattr(self, name), length))
        for name in _arrays(self):
            object.__setattr__(self, name, _column(name, getattr(self, name), np.size(self.model_bits)))

    @property
    def num_units(self) -> int:
        return len(self.model_bits) // self.num_blocks - 1

    def cuts_of(self, rows: Array | Sequence[int] | int) -> Array:
        """The cuts of rows. In the first block, a row is a cut."""
        return np.asarray(rows) % (self.num_units + 1)

    def blocks_of(self, rows: Array | Sequence[int] | int) -> Array:
        """The blocks of rows."""
        return np.asarray(rows) // (self.num_units + 1)

    @property
    def down_bits(self) -> Array:
        """What comes down to a client once a round, [C]."""
        return self.model_bits if self.model_down_bits is None else self.model_down_bits

    @property
    def swapped_bits(self) -> Array:
        """What the units before each cut take between the two servers, [C]: 8 bytes a number, twice a float32's, unless the table says more."""
        return 2 * self.model_bits if self.sum_bits is None else self.sum_bits

    @property
    def cuts(self) -> range:
        """All cuts of the model: 0 to the number of its units."""
        return range(self.num_units + 1)

    @property
    def client_flops(self) -> Array:
        return self.client_forward_flops + self.client_backward_flops

    @property
    def server_flops(self) -> Array:
        return self.server_forward_flops + self.server_backward_flops

    def table(self) -> Rows:
        """A plain row for each cut."""
        return Rows(
            {"cut": cut} | {name: float(getattr(self, name)[cut]) for name in _arrays(self)} for cut in self.cuts
        )

    def screen(self) -> Screen:
        """What each cut costs, in the units in which people think of it."""
        memory = f"; memory for a mini-batch of {self.batch_size}" if self.memory_bits is not None else ""
        columns = [self.client_flops / 1e9, self.server_flops / 1e9, self.smashed_bits / 8e3, self.model_bits / 8e6]
        columns += [] if self.memory_bits is None else [self.memory_bits / 8e6]
        header = ("cut", "client GFLOPs", "server GFLOPs", "smashed kB", "model MB", "memory MB")[: 1 + len(columns)]
        rows = [(cut, *(float(column[cut]) for column in columns)) for cut in self.cuts]
        return Screen([f"{self.num_units} units; per sample, forward and backward{memory}"], header, rows)

    def save(self, path: str | Path) -> None:
        """Write the table as a JSON file, whole or not at all."""
        write_json(Path(path), self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in _arrays(self)} | {"batch_size": self.batch_size}
        lists = {name: [list(sizes) for sizes in getattr(self, name) or ()] for name in SIZES}
        return arrays | {name: sizes for name, sizes in lists.items() if sizes}

    @classmethod
    def load(cls, path: str | Path) -> "CostTable":
        try:
            table = json.loads(Path(path).read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"cannot read the cost table {path}: {error}") from None
        if not isinstance(table, dict):
            raise InputError(f"the cost table {path} holds a {type(table).__name__}; it must be a JSON object")
        return cls.from_dict(table, where=str(path))

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], where: str = "the cost table") -> "CostTable":
        known = [field.name for field in fields(cls) if field.name != "num_blocks"]
        if unknown := [name for name in table if name not in known]:
            raise InputError(f"{where} has an unknown field {unknown[0]!r}; it may have {', '.join(known)}")
        if missing := [name for name in known[:7] if name not in table]:
            raise InputError(f"{where} lacks {missing[0]}; measure it again with hsfl cost")
        size = table.get("batch_size")
        if size is not None and (not isinstance(size, int) or size < 1):
            raise InputError(f"{where}: batch_size is {size!r}; it must be a positive whole number")
        try:
            return cls(**table)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None


def _arrays(cost: CostTable) -> list[str]:
    others = ("batch_size", "num_blocks", *SIZES)
    return [f.name for f in fields(cost) if f.name not in others and getattr(cost, f.name) is not None]


def _sizes(name: str, value: object, length: int) -> tuple[tuple[int, ...], ...] | None:
    """Lists of sizes, one for each cut or unit; an empty list of them is none."""
    if value is None or value == []:
        return None
    lists = value if isinstance(value, list | tuple) else ()
    good = all(isinstance(sizes, list | tuple) and all(_is_size(size) for size in sizes) for sizes in lists)
    if not good or len(lists) != length:
        raise InputError(
            f"{name} is {shown_value(value)}; give {length} lists of positive whole numbers, or leave it out"
        )
    return tuple(tuple(sizes) for sizes in lists)


def _is_size(size: object) -> bool:
    return isinstance(size, int) and 0 < size <= MOST_SIZE


def _column(name: str, values: object, num_cuts: int) -> Array:
    try:
        column = np.asarray(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} is not a list of numbers") from None
    if column.ndim != 1 or column.size < 2 or column.size != num_cuts:
        raise InputError(f"{name} has shape {column.shape} but model_bits has {num_cuts} cuts; give one number per cut")
    bad = ~(np.isfinite(column) & (column >= 0))
    if bad.any():
        cut = int(bad.argmax())
        raise InputError(f"{name}[{cut}] is {column[cut]}; it must be finite and not negative")
    column.setflags(write=False)
    return column


def check_sample_shape(shape: Sequence[int]) -> None:
    """Refuse the shape of a sample that is none, or that no machine could hold."""
    whole = all(isinstance(side, int) and 1 <= side <= MOST_SIDE for side in shape)
    if not shape or not whole or prod(shape) > MOST_NUMBERS:
        raise InputError(
            f"--input is {tuple(shape)}; choose whole sides of 1..{MOST_SIDE}, {MOST_NUMBERS:,} numbers at most"
        )


def measure_cost(
    model: "SplitModel", input_shape: Sequence[int], batch_size: int, *, optimizer_states: int = ADAM_STATES
) -> CostTable:
    """Measure every cut of a model, unit by unit, forward and backward, without changing the model.

    input_shape: of one sample. batch_size: of the mini-batch for which memory is counted.
    Backward counts the gradient of a unit's input only where training computes it: a client's first layer returns none,
    while the server's first unit must return the gradient of the smashed data. Nothing is computed: shapes flow through
    a copy on the meta device (or two real samples where a unit cannot do that).

    `memory_bits` of a cut = parameters and buffers, one gradient per parameter, `optimizer_states` tensors per
    parameter, what autograd saves for backward over a mini-batch (each storage once, parameters not again), and
    one tensor of the smashed data's size (sent, then its gradient received). Workspaces of kernels are not in it.
    """
    if not input_shape or any(int(n) < 1 for n in input_shape) or batch_size < 1:
        raise InputError(f"input_shape {tuple(input_shape)} and batch_size {batch_size} must be positive")
    try:
        measured = _measure_units(model, input_shape, batch_size, "meta")
    except RuntimeError:  # a unit that looks at values; any other mistake shows again on the real samples
        from torch.backends import mkldnn

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the flags warn of GPUs that are not there
            with mkldnn.flags(enabled=False):  # mkldnn's LSTM is one operation, in which no matrix product is counted
                measured = _measure_units(model, input_shape, min(batch_size, 2), "cpu")
    forward, backward, saved_bits, output_bits, shapes = measured
    num_units = model.num_units
    whole = backward["whole"]
    smashed_bits = np.append(output_bits[:-1], 0.0)
    param_bits = _sums_before([sum(_num_bits(p) for p in unit.parameters()) for unit in model.units])
    model_bits = _sums_before([sum(_num_bits(t) for t in model.unit_state(u).values()) for u in range(num_units)])
    training_bits = model_bits + (1 + optimizer_states) * param_bits
    return CostTable(
        client_forward_flops=_sums_before(forward),
        client_backward_flops=_sums_before(whole),
        server_forward_flops=_sums_from(forward),
        # At cut 0 the server trains the whole model; at any other its first unit returns a gradient.
        server_backward_flops=np.append(sum(whole), _sums_from(backward["with_input_gradient"])[1:]),
        smashed_bits=smashed_bits,
        gradient_bits=np.where(np.arange(num_units + 1) > 0, smashed_bits, 0.0),
        model_bits=model_bits,
        param_bits=param_bits,
        memory_bits=training_bits + batch_size * (_sums_before(saved_bits) + smashed_bits),
        batch_size=batch_size,
        smashed_shapes=(*shapes[:-1], ()),
        param_sizes=tuple(tuple(p.numel() for p in unit.parameters() if p.numel()) for unit in model.units),
        sum_bits=_sums_before([SUM_BITS * (1 + _num_values(model.unit_state(u))) for u in range(num_units)]),
    )


def measure_module(module: "torch.nn.Module", input_shape: Sequence[int], batch_size: int = 2) -> tuple[float, float]:
    """The FLOPs per sample (forward, and backward with the gradient of the input) and the bits of a module that stands
    beside the model, such as LocFedMix-SL's decoder. input_shape: of one sample."""
    import torch

    copied = copy.deepcopy(module).to("meta").train()
    x = torch.zeros(batch_size, *input_shape, device="meta")
    return sum(_forward_backward(copied, x, input_gradient=True)) / batch_size, sum(
        _num_bits(t) for t in module.state_dict().values()
    )


def _sums_before(per_unit: Sequence[float]) -> Array:
    """The sum over the units [0, cut), for each cut."""
    return np.concatenate([[0.0], np.cumsum(per_unit, dtype=float)])


def _sums_from(per_unit: Sequence[float]) -> Array:
    """The sum over the units [cut, num_units), for each cut."""
    return np.concatenate([np.cumsum(per_unit[::-1], dtype=float)[::-1], [0.0]])


def _num_values(unit_state: Mapping[str, "torch.Tensor"]) -> int:
    return sum(tensor.numel() for tensor in unit_state.values())


def _num_bits(tensor: "torch.Tensor") -> int:
    return tensor.numel() * tensor.element_size() * BITS_PER_BYTE


def _measure_units(
    model: "SplitModel", input_shape: Sequence[int], num_samples: int, device: str
) -> tuple[list[float], dict[str, list[float]], list[float], list[float], list[tuple[int, ...]]]:
    """Per unit and sample: forward FLOPs; backward FLOPs in the whole model and with an input gradient; bits saved
    for backward in the whole model. And the bits before the first unit and after each one, with the shapes of what is no whole number."""
    import torch

    units = [copy.deepcopy(unit).to(device).train() for unit in model.units]
    x = torch.zeros(num_samples, *input_shape, dtype=model.input_dtype, device=device)
    forward: list[float] = []
    backward: dict[str, list[float]] = {"whole": [], "with_input_gradient": []}
    saved_bits, output_bits, shapes = [], [float(_num_bits(x))], [_float_shape(x)]
    storages: dict[int, object] = {}
    for unit, name in zip(units, model.unit_names):
        flops = _forward_backward(unit, x, input_gradient=True, name=name)
        forward.append(flops[0])
        backward["with_input_gradient"].append(flops[1])
        # Before the first parameter of the whole model no gradient flows.
        backward["whole"].append(flops[1] if x.requires_grad else _forward_backward(unit, x, False, name)[1])
        unit_bits, y = _bits_saved(unit, x, storages)
        saved_bits.append(unit_bits)
        output_bits.append(float(_num_bits(y)))
        shapes.append(_float_shape(y))
        x = y
    per_sample = [[value / num_samples for value in values] for values in (forward, saved_bits, output_bits)]
    backward = {key: [value / num_samples for value in values] for key, values in backward.items()}
    return per_sample[0], backward, per_sample[1], per_sample[2], shapes


def _float_shape(tensor: "torch.Tensor") -> tuple[int, ...]:
    """The shape of one sample; empty for whole numbers, which no codec takes."""
    return tuple(tensor.shape[1:]) if tensor.is_floating_point() else ()


def _forward_backward(
    unit: "torch.nn.Module", x: "torch.Tensor", input_gradient: bool, name: str = "decoder"
) -> tuple[float, float]:
    """FLOPs of a unit's forward and of its backward."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    input_gradient = input_gradient and x.is_floating_point()  # tokens have none
    leaf = x.detach().requires_grad_(input_gradient)
    with FlopCounterMode(display=False) as counter:
        try:
            y = unit(leaf.clone())  # a clone, since a unit may begin with an in-place ReLU
        except RuntimeError as error:
            if x.is_meta:
                raise
            message = str(error).splitlines()[0]
            raise InputError(f"unit {name!r} takes no input of shape {tuple(x.shape[1:])}: {message}") from None
        forward = float(counter.get_total_flops())
        if not isinstance(y, torch.Tensor):
            raise InputError(f"unit {name!r} returns a {type(y).__name__}; a cut needs one tensor")
        if y.requires_grad:
            leaves = [p for p in unit.parameters() if p.requires_grad] + ([leaf] if input_gradient else [])
            torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True)
    return forward, counter.get_total_flops() - forward


def _bits_saved(
    unit: "torch.nn.Module", x: "torch.Tensor", storages: dict[int, object]
) -> tuple[float, "torch.Tensor"]:
    """The bits that a unit adds to what autograd saves for backward, and the unit's output, still joined to the graph of the units
    before. storages: what autograd holds already, by id; it keeps the storages alive, so that an id stays unique."""
    import torch

    unit_storages = {t.untyped_storage()._cdata for t in (*unit.parameters(), *unit.buffers())}
    added = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal added
        storage = tensor.untyped_storage()
        if storage._cdata not in unit_storages and storage._cdata not in storages:
            storages[storage._cdata] = storage
            added += storage.nbytes() * BITS_PER_BYTE
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = unit(x)
    return float(added), y
