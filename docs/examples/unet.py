"""Segmentation: a U-Net learns which pixels belong to a disc, a square or a ring, and its skips cross the clients' cuts.

    python docs/examples/unet.py

runs it in well under a minute. The same file is a plugin, so that commands know `shapes` and `unet` by name:

    hsfl compare --plugin docs/examples/unet.py --set data.name=shapes --set model.name=unet -f hsfl,fleet.cuts=3 -f fl --out runs/shapes

There FL's round is a third as long as HSFL's: behind cut 3 the body and both skips cross for every sample, 57 kB up and as many down (`hsfl cost
docs/examples/unet.py:build_unet --input 1,32,32`), while this whole model of 58 kB goes up and down once a round. Splitting gains where a model is large, or where
its memory or its FLOPs are too much for a client.
"""

import numpy as np
import torch
from torch import nn

import hsfl

CLASSES = ("background", "disc", "square", "ring")
SIDE = 32


def draw_shapes(num_images: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images [n, 1, SIDE, SIDE] in 0..255 with two figures each, and the class of every pixel [n, SIDE, SIDE]."""
    row, column = np.mgrid[:SIDE, :SIDE]
    x = rng.normal(70, 20, (num_images, 1, SIDE, SIDE))
    y = np.zeros((num_images, SIDE, SIDE), int)
    for image, classes in zip(x[:, 0], y):
        for kind in rng.integers(1, len(CLASSES), 2):
            centre, radius = rng.uniform(6, SIDE - 6, 2), rng.uniform(4, 8)
            down, right = abs(row - centre[0]), abs(column - centre[1])
            distance = np.maximum(down, right) if kind == 2 else np.hypot(down, right)
            inside = distance < radius if kind != 3 else (distance < radius) & (distance > 0.6 * radius)
            image[inside] += rng.uniform(60, 120)
            classes[inside] = kind
    return np.clip(x, 0, 255).astype(np.uint8), y


def read_shapes(request: object = None) -> tuple:
    """Samples and targets for training, then for testing, and the names of the classes."""
    rng = np.random.default_rng(0)
    return *draw_shapes(400, rng), *draw_shapes(100, rng), CLASSES


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU())


class Unet(nn.Module):
    """Down twice and up again, with a skip at each size (Ronneberger, Fischer, Brox, 2015)."""

    def __init__(self, channels: int, num_classes: int, width: int = 8) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.large = block(channels, width)
        self.middle = block(width, 2 * width)
        self.small = block(2 * width, 4 * width)
        self.up_to_middle = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join_middle = block(4 * width, 2 * width)
        self.up_to_large = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join_large = block(2 * width, width)
        self.last = nn.Conv2d(width, num_classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = self.large(x)
        middle = self.middle(self.pool(large))
        small = self.small(self.pool(middle))
        middle = self.join_middle(torch.cat([middle, self.up_to_middle(small)], 1))
        large = self.join_large(torch.cat([large, self.up_to_large(middle)], 1))
        return self.last(large)  # [batch, classes, height, width]


def build_unet(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """At the bottom three tensors cross a cut together: what goes on, and two skips."""
    return hsfl.split(Unet(input_shape[0], num_classes), torch.zeros(2, *input_shape), most_tensors=3)


hsfl.register_dataset("shapes", read_shapes, task="segmentation")
hsfl.register_model("unet", build_unet)

if __name__ == "__main__":
    result = hsfl.run(
        data={"name": "shapes"},
        model="unet",
        fleet={"num_clients": 4, "cuts": [1, 2, 3, 5]},
        train={"rounds": 20, "batch_size": 8, "lr": 0.01},
        out="runs/unet",
        progress=True,
    )
    print(f"mean IoU {result.metrics['mean_iou']:.3f}, pixel accuracy {result.metrics['pixel_accuracy']:.3f}")
    print(result.report)
