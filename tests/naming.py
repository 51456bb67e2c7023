"""An error is tested for what it names (the field, the value, the way out), not for its sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

MOST_WORDS = 5  # of a part; more of them are a sentence, which would fail when a comma moves


def names(text: object, *parts: str) -> None:
    """Fails unless every part occurs in the text, or in the text of the error. A part is a field, a value or a way out."""
    sentences = [part for part in parts if "; " in part or len(part.split()) > MOST_WORDS]
    assert not sentences, f"give what the error names as parts of at most {MOST_WORDS} words, instead of {sentences}"
    missing = [part for part in parts if part not in str(text)]
    assert not missing, f"{missing} missing in: {text}"


@contextmanager
def raises(kind: type[BaseException], *parts: str) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Fails unless the block raises an error of this kind that names every part."""
    with pytest.raises(kind) as caught:
        yield caught
    names(caught.value, *parts)
