"""VGG-11 with BatchNorm: Simonyan, Zisserman, Very Deep Convolutional Networks (ICLR 2015), configuration A."""

from torch import nn

from hsfl.models.layers import init_weights, named
from hsfl.models.units import SplitModel

# (width, whether a 2x2 max-pool follows), by convolution
CONVOLUTIONS = (
    (64, True),
    (128, True),
    (256, False),
    (256, True),
    (512, False),
    (512, True),
    (512, False),
    (512, True),
)
SHRINK = 32  # five max-pools
FULL_SIDE, FULL_WIDTH = 7, 4096  # the classifier's input and hidden layers as published
SMALL_WIDTH = 512


def vgg11_bn(input_shape: tuple[int, int, int], num_classes: int, *, stem: str, dropout: float) -> SplitModel:
    """Eleven units: eight convolutions (each with norm, ReLU and its max-pool) and three dense layers.

    Names are torchvision's, `features.0.weight` .. `classifier.6.bias`; for images of 224 and more, shapes too.
    Smaller images get a classifier of their size. The published one wants a 7x7 map and holds 124 of the 133 million
    parameters; at 32x32 the map is 1x1, and stretching it to 7x7 would feed each number 49 times into 103 million
    weights. So the map keeps its own size, image / 32, and the hidden layers have 512 units: 9.8 million parameters
    at 32x32 with ten classes. The stem is 3x3 with stride 1 either way.
    """
    in_channels, *image = input_shape
    units: dict[str, nn.Module] = {}
    index = 0  # position in torchvision's flat `features`
    for width, pools in CONVOLUTIONS:
        layers = [nn.Conv2d(in_channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        if pools:
            layers.append(nn.MaxPool2d(2))
        units[f"features.{index}"] = named(**{str(index + i): layer for i, layer in enumerate(layers)})
        index += len(layers)
        in_channels = width

    height, width = (min(FULL_SIDE, max(1, side // SHRINK)) for side in image)
    full = height == width == FULL_SIDE
    hidden = FULL_WIDTH if full else SMALL_WIDTH
    flat = named(pool=nn.AdaptiveAvgPool2d((height, width)), flatten=nn.Flatten())
    units["classifier.0"] = _dense(0, in_channels * height * width, hidden, dropout, before=flat)
    units["classifier.3"] = _dense(3, hidden, hidden, dropout)
    units["classifier.6"] = nn.Linear(hidden, num_classes)

    shared = {name: f"{name.split('.')[0]}." for name in units if name != "classifier.6"}
    model = SplitModel(units, prefixes=shared)
    init_weights(model, linear_std=0.01 if full else None)  # 0.01 suits 4096 inputs; it would starve layers of 512
    return model


def _dense(index: int, inputs: int, outputs: int, dropout: float, before: nn.Sequential | None = None) -> nn.Sequential:
    layers = dict(before.named_children()) if before is not None else {}
    layers[f"{index}"] = nn.Linear(inputs, outputs)
    layers[f"{index + 1}"] = nn.ReLU(inplace=True)
    layers[f"{index + 2}"] = nn.Dropout(dropout)
    return named(**layers)
