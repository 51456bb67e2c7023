"""What the architectures share: named sequences, first weights, and BatchNorm exchanged for GroupNorm."""

from collections.abc import Callable

from torch import nn

from hsfl.models.split.module_split import ModuleSplit
from hsfl.models.units import SplitModel

MAX_GROUPS = 32  # Wu and He, Group Normalization (2018)


def named(**layers: nn.Module) -> nn.Sequential:
    """A sequence whose layers have names: `named(conv=..., norm=...)`."""
    sequence = nn.Sequential()
    for name, layer in layers.items():
        sequence.add_module(name, layer)
    return sequence


def init_weights(module: nn.Module, linear_std: float | None = None) -> None:
    """First weights, drawn from torch's generator: convolutions after He et al. (2015), N(0, 2 / fan_out), biases 0.

    Norm layers are born as ones and zeros. Linear layers keep torch's own start unless `linear_std` asks for
    N(0, linear_std^2) and biases 0. A module on the meta device has no numbers: nothing is drawn, for which torch would load its compiler.
    """
    for layer in module.modules():
        if any(parameter.is_meta for parameter in layer.parameters(recurse=False)):
            continue
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear) and linear_std is not None:
            nn.init.normal_(layer.weight, 0.0, linear_std)
        else:
            continue
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _num_groups(num_channels: int) -> int:
    """The largest divisor of the channels that is at most 32."""
    return next(groups for groups in range(min(MAX_GROUPS, num_channels), 0, -1) if num_channels % groups == 0)


def _group_norm(batch_norm: nn.BatchNorm2d) -> nn.Module:
    """A GroupNorm for the channels of a BatchNorm."""
    channels = batch_norm.num_features
    return nn.GroupNorm(_num_groups(channels), channels, eps=batch_norm.eps, affine=batch_norm.affine)


def swap_norm(module: nn.Module, into: Callable[[nn.BatchNorm2d], nn.Module] = _group_norm) -> nn.Module:
    """Exchange every BatchNorm2d, by default for a fresh GroupNorm, which has no statistics to average.

    Use the module that is returned. It is the given module, changed in place, or a new one where the given module is a
    norm or a SplitModel (whose units stand in two trees at once, so it is put together anew).
    """
    if isinstance(module, nn.BatchNorm2d):
        return into(module)
    if isinstance(module, ModuleSplit):
        return module.changed(lambda whole: swap_norm(whole, into))
    if isinstance(module, SplitModel):
        units = {name: swap_norm(unit, into) for name, unit in zip(module.unit_names, module.units)}
        return SplitModel(units, dict(zip(module.unit_names, module.prefixes)))
    for name, child in module.named_children():
        module.add_module(name, swap_norm(child, into))
    return module
