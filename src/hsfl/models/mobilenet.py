"""MobileNetV2: Sandler, Howard, Zhu, Zhmoginov, Chen, Inverted Residuals and Linear Bottlenecks (CVPR 2018)."""

from torch import Tensor, nn

from hsfl.models.layers import init_weights, named
from hsfl.models.units import SplitModel

FIRST_WIDTH, LAST_WIDTH = 32, 1280
# Table 2 of the paper: expansion, output channels, number of blocks, stride of the first of them
BOTTLENECKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _conv_norm(in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution that keeps the size at stride 1, BatchNorm and ReLU6."""
    padding = (kernel - 1) // 2
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.ReLU6(inplace=True))


def _block_layers(in_channels: int, out_channels: int, stride: int, expansion: int) -> list[nn.Module]:
    """A block's layers: widen by 1x1, filter each channel by 3x3, narrow linearly by 1x1 and BatchNorm."""
    hidden = in_channels * expansion
    widen = [_conv_norm(in_channels, hidden, 1)] if expansion != 1 else []
    filtering = _conv_norm(hidden, hidden, 3, stride, groups=hidden)
    return [*widen, filtering, nn.Conv2d(hidden, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels)]


class InvertedResidual(nn.Module):
    """A block whose input is added to what its layers give, so that it is one unit."""

    def __init__(self, channels: int, expansion: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(*_block_layers(channels, channels, 1, expansion))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


def mobilenet_v2(input_shape: tuple[int, int, int], num_classes: int, *, stem: str, dropout: float) -> SplitModel:
    """33 units with torchvision's names: `features.0` to `features.18`, and `classifier` with its pooling.

    A block that adds its input is one unit; every other block has a unit for each convolution. These are all the cuts
    that one tensor crosses.

    Stem `imagenet` has stride 2 in the first convolution, `cifar` stride 1.
    """
    units: dict[str, nn.Module] = {
        "features.0": _conv_norm(input_shape[0], FIRST_WIDTH, 3, 1 if stem == "cifar" else 2)
    }
    prefixes = {"classifier": ""}
    in_channels, number = FIRST_WIDTH, 1
    for expansion, width, num_blocks, first_stride in BOTTLENECKS:
        for block in range(num_blocks):
            name = f"features.{number}"
            if block == 0:  # the first block of a row changes the width
                for group in _by_convolution(_block_layers(in_channels, width, first_stride, expansion)):
                    units[f"{name}.conv.{next(iter(group))}"] = named(**group)
                    prefixes[f"{name}.conv.{next(iter(group))}"] = f"{name}.conv."
            else:
                units[name] = InvertedResidual(width, expansion)
            in_channels, number = width, number + 1
    units[f"features.{number}"] = _conv_norm(in_channels, LAST_WIDTH, 1)
    classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(LAST_WIDTH, num_classes))
    units["classifier"] = named(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), classifier=classifier)
    model = SplitModel(units, prefixes)
    init_weights(model, linear_std=0.01)
    return model


def _by_convolution(block: list[nn.Module]) -> list[dict[str, nn.Module]]:
    """The layers of a block by their numbers, one group for each convolution; the last one has its BatchNorm with it."""
    numbered = {str(number): layer for number, layer in enumerate(block)}
    last_group = dict(list(numbered.items())[-2:])
    return [*({number: layer} for number, layer in numbered.items() if number not in last_group), last_group]
