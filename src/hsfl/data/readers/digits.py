"""The 1797 handwritten digits that come with scikit-learn, enlarged from 8x8 to 32x32: a set that needs no download."""

import numpy as np

from hsfl.data.readers.reader_base import Arrays, Request, divided, held_out_groups, resized_array
from hsfl.errors import DataMissing

MAX_VALUE = 16  # of a pixel as scikit-learn has it
IMAGE_SIZE = 32


def read_digits(request: Request) -> Arrays:
    """Digits, a fifth of each class held out for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataMissing("digits comes with scikit-learn, which is missing; pip install scikit-learn") from error
    digits = load_digits()
    small = np.rint(digits.images * (255 / MAX_VALUE)).astype(np.uint8)[:, None]  # [n, 1, 8, 8]
    labels = digits.target.astype(np.int64)
    is_test = held_out_groups(labels, np.arange(len(labels)), "digits")
    return divided(resized_array(small, request.image_size or IMAGE_SIZE), labels, is_test, tuple("0123456789"))
