"""A module of one's own: `hsfl cost docs/examples/small_net.py:build --input 3,224,224` shows what each of its cuts costs."""

from torch import nn


def build() -> nn.Module:
    """Any module that `hsfl.split` can cut."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
