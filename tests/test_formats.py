"""Numbers as people read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsfl import formats


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (formats.seconds(0.012345), "0.0123 s"),
        (formats.seconds(99.94), "99.9 s"),
        (formats.seconds(12345.6), "12,346 s"),
        (formats.seconds(12.34567, 4), "12.35 s"),
        (formats.took(0.0123), "12.3 ms"),
        (formats.took(1.234), "1.23 s"),
        (formats.duration(119), "119 s"),
        (formats.duration(600), "10 min"),
        (formats.duration(7200), "2.0 h"),
        (formats.percent(0.12345), "12.35%"),
        (formats.percent(0.5, 1, sign=True), "+50.0%"),
        (formats.size(999), "999 B"),
        (formats.size(1536), "1.536 kB"),
        (formats.size(999_999), "1 MB"),
        (formats.size(3e12), "3000 GB"),
        (formats.giga(2.5e9), "2.5"),
        (formats.si(1e12), "1 T"),
        (formats.si(3), "3 "),
        (formats.count(1, "round"), "1 round"),
        (formats.count(1234, "round"), "1,234 rounds"),
        (formats.brief(math.nan), "-"),
        (formats.brief(1234.5), "1234"),
        (formats.brief(1.5e9), "1.5e9"),
    ],
)
def test_examples(said: str, wanted: str) -> None:
    assert said == wanted


@given(st.floats(1e-12, 1e12), st.integers(1, 15))
def test_rounding_twice_is_rounding_once_and_stays_near(value: float, digits: int) -> None:
    near = formats.rounded(value, digits)
    assert formats.rounded(near, digits) == near
    assert abs(near - value) <= 0.5000001 * 10.0 ** (1 - digits) * value
