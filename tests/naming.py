"""An error is tested for what it names (the field, the value, the way out), not for its sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def names(text: object, *parts: str) -> None:
    """Fails unless every part occurs in the text, or in the text of the error."""
    missing = [part for part in parts if part not in str(text)]
    assert not missing, f"{missing} missing in: {text}"


@contextmanager
def raises(kind: type[BaseException], *parts: str) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Fails unless the block raises an error of this kind that names every part."""
    with pytest.raises(kind) as caught:
        yield caught
    names(caught.value, *parts)
