"""ResNet-18: He, Zhang, Ren, Sun, Deep Residual Learning for Image Recognition (CVPR 2016)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hsfl.models.layers import init_weights, named
from hsfl.models.units import SplitModel

WIDTHS = (64, 128, 256, 512)
BLOCKS_PER_LAYER = 2


class Conv3x3(nn.Conv2d):
    """A 3x3 convolution with padding 1 that is a matrix product where only one pixel comes out.

    There most taps meet padding alone, which kernels for convolutions multiply all the same: at 32x32 the backward of
    the last blocks took half of a training step. Shapes on the meta device go the common way, so
    FLOPs are counted as always; and so does a trace for TorchScript, which then serves images of any size.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__(in_channels, out_channels, 3, stride, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        by_shape = x.is_meta or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if by_shape or height > self.stride[0] or width > self.stride[1]:
            return super().forward(x)
        taps = self.weight[:, :, 1 : 1 + height, 1 : 1 + width]
        return F.linear(x.flatten(1), taps.flatten(1))[:, :, None, None]


class BasicBlock(nn.Module):
    """relu(x' + bn(conv(relu(bn(conv(x)))))), where x' is x, or its 1x1 projection where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = Conv3x3(out_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or in_channels != out_channels:
            projection = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


def _stem(in_channels: int, stem: str) -> nn.Sequential:
    norm, relu = nn.BatchNorm2d(WIDTHS[0]), nn.ReLU(inplace=True)
    if stem == "cifar":
        return named(conv1=Conv3x3(in_channels, WIDTHS[0]), bn1=norm, relu=relu)
    conv = nn.Conv2d(in_channels, WIDTHS[0], 7, stride=2, padding=3, bias=False)
    return named(conv1=conv, bn1=norm, relu=relu, maxpool=nn.MaxPool2d(3, stride=2, padding=1))


def resnet18(input_shape: tuple[int, int, int], num_classes: int, *, stem: str, dropout: float) -> SplitModel:
    """Ten units with torchvision's names: the stem, eight blocks `layer1.0` .. `layer4.1`, and `fc` with its pooling.

    Stem `imagenet` is 7x7 with stride 2 and a max-pool, `cifar` is 3x3 with stride 1 and no max-pool.
    """
    units: dict[str, nn.Module] = {"stem": _stem(input_shape[0], stem)}
    in_channels = WIDTHS[0]
    for layer, width in enumerate(WIDTHS, start=1):
        for block in range(BLOCKS_PER_LAYER):
            stride = 2 if layer > 1 and block == 0 else 1
            units[f"layer{layer}.{block}"] = BasicBlock(in_channels, width, stride)
            in_channels = width
    units["fc"] = named(avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(WIDTHS[-1], num_classes))
    model = SplitModel(units, prefixes={"stem": "", "fc": ""})
    init_weights(model)
    return model
