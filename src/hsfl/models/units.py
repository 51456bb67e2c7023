"""A model is an ordered list of units; a cut is an integer.

`head(cut)` is units `[0, cut)`, on the client; `tail(cut)` is units `[cut, num_units)`, on the main server.
Cut 0: the client runs nothing and raw data travels. Cut `num_units`: the server runs nothing, which is FL.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from hsfl.errors import InputError


class SplitModel(nn.Module):
    """Units in order, with the parameter names of the model they come from.

    `units` maps a unit's name to its module (a plain sequence is named by position). A unit's tensors are called
    `prefix + local name`, where the prefix is the unit's name and a dot unless `prefixes` says otherwise; with the
    empty prefix a unit's children stand at the top, and units with one prefix in common stand side by side under it.
    So the `state_dict` of ResNet-18 and of VGG-11 has torchvision's names.
    """

    input_dtype: torch.dtype | None = None  # of the samples; None is torch's default

    def __init__(
        self, units: Mapping[str, nn.Module] | Sequence[nn.Module], prefixes: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        named = dict(units) if isinstance(units, Mapping) else {str(i): unit for i, unit in enumerate(units)}
        if not named:
            raise InputError("a SplitModel needs at least one unit; got none")
        if len({id(unit) for unit in named.values()}) < len(named):
            raise InputError("the same module stands twice among the units; every unit needs a module of its own")
        _check_untied(named)
        self.unit_names = tuple(named)
        if any(_takes_tokens(unit) for unit in list(named.values())[:1]):
            self.input_dtype = torch.int64
        self.units = tuple(named.values())  # a tuple, so torch sees each module once, by its registered name
        self.prefixes = tuple((prefixes or {}).get(name, f"{name}.") for name in named)
        for unit, prefix in zip(self.units, self.prefixes):
            self._register(unit, prefix)

    def _register(self, unit: nn.Module, prefix: str) -> None:
        assert prefix == "" or prefix.endswith("."), prefix
        path = prefix.split(".")[:-1]
        joins = not path or self.prefixes.count(prefix) > 1  # then the unit's children stand at the prefix
        if joins and (unit._parameters or unit._buffers):
            raise InputError(f"a unit with prefix {prefix!r} has tensors of its own; wrap it in an nn.Sequential")
        parent: nn.Module = self
        for name in path if joins else path[:-1]:
            if name not in parent._modules:
                parent.add_module(name, nn.Module())
            parent = parent.get_submodule(name)
        for name, module in unit.named_children() if joins else [(path[-1], unit)]:
            if hasattr(parent, name):
                raise InputError(
                    f"a unit or part of it is called {prefix if joins else ''}{name}, which is taken; rename it"
                )
            parent.add_module(name, module)

    @property
    def num_units(self) -> int:
        return len(self.units)

    @property
    def norm_rates(self) -> list[float]:
        """For each BatchNorm: the part of its running statistics that a step replaces."""
        return norm_rates(self)

    def check_cut(self, cut: int, what: str = "cut") -> int:
        if not 0 <= cut <= self.num_units:
            raise InputError(f"{what} is {cut} but the model has {self.num_units} units; choose 0..{self.num_units}")
        return cut

    def head(self, cut: int) -> nn.Sequential:
        """Units `[0, cut)`: what a client holds. The modules are shared, not copied."""
        return nn.Sequential(*self.units[: self.check_cut(cut)])

    def tail(self, cut: int) -> nn.Sequential:
        """Units `[cut, num_units)`: what the main server holds for that client."""
        return nn.Sequential(*self.units[self.check_cut(cut) :])

    def unit_state(self, unit: int) -> dict[str, Tensor]:
        """Parameters and buffers of one unit, by their names in the whole model; not copies."""
        prefix = self.prefixes[unit]
        return {prefix + name: tensor for name, tensor in self.units[unit].state_dict(keep_vars=True).items()}

    def whole(self) -> nn.Module:
        """The model as one module, for programs that know no units."""
        return self

    def forward(self, x: Tensor) -> Tensor:
        for unit in self.units:
            x = unit(x)
        return x


def norm_rates(module: nn.Module) -> list[float]:
    """For each BatchNorm in a module: the part of its running statistics that a step replaces."""
    norms = (layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm))
    return [layer.momentum for layer in norms if layer.momentum]


def _takes_tokens(module: nn.Module) -> bool:
    """Whether the first layer with weights is an embedding, which takes tokens, whole numbers."""
    leaves = (layer for layer in module.modules() if layer._parameters and not layer._modules)
    return isinstance(next(leaves, None), nn.Embedding)


def _check_untied(units: Mapping[str, nn.Module]) -> None:
    """Refuse a parameter that stands in two places: every unit is averaged by itself."""
    owner: dict[int, str] = {}
    for name, unit in units.items():
        for local_name, parameter in unit.named_parameters(remove_duplicate=False):
            full_name = f"{name}.{local_name}"
            if id(parameter) in owner:
                raise InputError(
                    f"{full_name} and {owner[id(parameter)]} are one parameter; HSFL cannot train tied weights"
                )
            owner[id(parameter)] = full_name


def in_order(units: Mapping[str, nn.Module] | Sequence[nn.Module] | nn.Sequential) -> SplitModel:
    """A SplitModel from modules in order: a list, a mapping of names, or an `nn.Sequential`."""
    if isinstance(units, SplitModel):
        return units
    if isinstance(units, nn.Sequential) and type(units).forward is nn.Sequential.forward:
        named = {name: unit for name, unit in units._modules.items() if unit is not None}
    elif isinstance(units, nn.Module):
        raise InputError(
            f"{type(units).__name__} does not say the order of its parts; split it by an example of its input, "
            "hsfl.split(model, example_input), or pass a list of modules"
        )
    elif isinstance(units, Mapping | Sequence) and not isinstance(units, str):
        named = dict(units) if isinstance(units, Mapping) else {str(i): unit for i, unit in enumerate(units)}
    else:
        raise InputError(f"a model is a {type(units).__name__}; pass an nn.Module or a list of modules")
    for name, unit in named.items():
        if not isinstance(unit, nn.Module):
            raise InputError(f"unit {name} of the model is a {type(unit).__name__}; make each unit an nn.Module")
        check_not_lazy(unit, f"unit {name} of the model")
    return SplitModel(named)


def check_not_lazy(module: nn.Module, what: str) -> None:
    """Refuse a module whose weights wait for a first batch."""
    if any(isinstance(parameter, UninitializedParameter) for parameter in module.parameters()):
        raise InputError(f"{what} is lazy; show the model one batch first, so that it has its weights")
