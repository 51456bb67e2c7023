"""What is known of the built-in data sets without reading them."""

from typing import NamedTuple


class Facts(NamedTuple):
    """Of a whole data set."""

    num_train: int
    shape: tuple[int, ...]  # of a sample
    num_classes: int


FACTS = {
    "ham10000": Facts(8_009, (3, 64, 64), 7),  # as this package divides it by lesions, images of 64x64
    "cifar10": Facts(50_000, (3, 32, 32), 10),
    "mnist": Facts(60_000, (1, 28, 28), 10),
    "digits": Facts(1_438, (1, 32, 32), 10),
}
