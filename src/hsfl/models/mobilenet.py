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


def conv_norm(in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution that keeps the size at stride 1, BatchNorm and ReLU6."""
    padding = (kernel - 1) // 2
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """Widen by 1x1, filter each channel by 3x3, narrow linearly by 1x1; the input is added where the shape stays."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        layers: list[nn.Module] = [conv_norm(in_channels, hidden, 1)] if expansion != 1 else []
        layers.append(conv_norm(hidden, hidden, 3, stride, groups=hidden))
        layers += [nn.Conv2d(hidden, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels)]
        self.conv = nn.Sequential(*layers)
        self.adds_input = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds_input else self.conv(x)


def mobilenet_v2(input_shape: tuple[int, int, int], num_classes: int, *, stem: str, dropout: float) -> SplitModel:
    """Twenty units: `features.0` .. `features.18`, and `classifier` with its pooling; torchvision's names.

    Stem `imagenet` has stride 2 in the first convolution, `cifar` stride 1.
    """
    units: dict[str, nn.Module] = {}

    def add(unit: nn.Module) -> None:
        units[f"features.{len(units)}"] = unit

    add(conv_norm(input_shape[0], FIRST_WIDTH, 3, stride=1 if stem == "cifar" else 2))
    in_channels = FIRST_WIDTH
    for expansion, width, num_blocks, first_stride in BOTTLENECKS:
        for block in range(num_blocks):
            add(InvertedResidual(in_channels, width, first_stride if block == 0 else 1, expansion))
            in_channels = width
    add(conv_norm(in_channels, LAST_WIDTH, 1))
    classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(LAST_WIDTH, num_classes))
    units["classifier"] = named(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), classifier=classifier)
    model = SplitModel(units, prefixes={"classifier": ""})
    init_weights(model, linear_std=0.01)
    return model
