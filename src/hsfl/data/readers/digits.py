"""The 1797 handwritten digits that come with scikit-learn, enlarged from 8x8 to 32x32: a set that needs no download."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from hsfl.data.readers.reader_base import Arrays, Request, divided, held_out_groups, resized_array
from hsfl.errors import DataMissing

FILE = Path("datasets", "data", "digits.csv.gz")  # of scikit-learn
MAX_VALUE = 16  # of a pixel as scikit-learn has it
IMAGE_SIZE = 32


def read_digits(request: Request) -> Arrays:
    """Digits, a fifth of each class held out for testing."""
    table = _table()
    small = np.rint(table[:, :-1].reshape(-1, 1, 8, 8) * (255 / MAX_VALUE)).astype(np.uint8)  # [n, 1, 8, 8]
    labels = table[:, -1].astype(np.int64)
    is_test = held_out_groups(labels, np.arange(len(labels)), "digits")
    return divided(resized_array(small, request.image_size or IMAGE_SIZE), labels, is_test, tuple("0123456789"))


def _table() -> np.ndarray:
    """A row for each digit: its 64 pixels and its class. The file is read where it lies, since scikit-learn takes a second to load."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataMissing("digits comes with scikit-learn, which is missing; pip install scikit-learn")
    path = Path(package.origin).parent / FILE
    if path.is_file():
        return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits  # here, because it takes a second to load

    digits = load_digits()
    return np.column_stack([digits.data, digits.target])
