"""A plugin: a small CNN whose first unit takes its time on a machine that says so, so that a test can kill in mid-batch."""

import os
import time

from torch import Tensor, nn

import hsfl


class Pause(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(float(os.environ.get("HSFL_TEST_PAUSE_S", "0")))
        return x


def slow_cnn(input_shape: tuple[int, ...], num_classes: int) -> hsfl.SplitModel:
    channels = input_shape[0]
    return hsfl.split(
        {
            "first": nn.Sequential(Pause(), nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
            "second": nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            "third": nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            "last": _last(16, input_shape, num_classes),
        }
    )


def _last(channels: int, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    _, height, width = input_shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * (height // 4) * (width // 4), num_classes))


hsfl.register_model("slow_cnn", slow_cnn)
