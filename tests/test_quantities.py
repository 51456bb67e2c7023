"""Quantities with units: one parser for the command line, for configs and for fleet files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsfl.config import read_config
from hsfl.errors import InputError
from hsfl.quantities import KINDS, parse_quantity, parse_setting, quantity_kind, quantity_text
from tests.naming import raises

READ = [
    ("cycles", "3.6GHz", 3.6e9),
    ("cycles", "5 g", 5e9),
    ("compute", "35 GFLOP/s", 35e9),
    ("compute", "1.5TFLOPS", 1.5e12),
    ("memory", "16GiB", 16 * 2**33),
    ("memory", "16 GB", 128e9),
    ("memory", "1024", 8192),
    ("bits", "1KiB", 8192),
    ("bits", "5e8", 5e8),
    ("rate", "100Mbps", 1e8),
    ("rate", "2 KiB/s", 2**14),
    ("power", "500mW", 0.5),
    ("seconds", "5min", 300),
    ("seconds", "20ms", 0.02),
    ("metres", "-2km", -2000),
]


@pytest.mark.parametrize(("kind", "text", "amount"), READ)
def test_a_quantity_in_base_units(kind: str, text: str, amount: float) -> None:
    assert parse_quantity(kind, text) == pytest.approx(amount, rel=1e-15)


@pytest.mark.parametrize(
    ("kind", "text", "parts"),
    [
        ("rate", "100Mbsp", ("unit 'Mbsp' is unknown", "5Mbps")),
        ("rate", "5mbps", ("m is milli", "write M")),
        ("memory", "8Gb", ("bits or bytes", "give bytes")),
        ("compute", "-3 GFLOP/s", ("above 0", "35 GFLOP/s")),
        ("cycles", "0", ("above 0", "5GHz")),
        ("cycles", "fast", ("number, such as 5GHz",)),
        ("cycles", "1e999Hz", ("beyond any device", "5GHz")),
        ("cycles", "", ("number, such as 5GHz",)),
    ],
)
def test_what_is_no_quantity_is_said_with_an_example(kind: str, text: str, parts: tuple[str, ...]) -> None:
    with raises(InputError, "such as", *parts):
        parse_quantity(kind, text)


@given(st.sampled_from(sorted(KINDS)), st.integers(1, 10**6))
def test_every_prefix_scales_its_unit(kind: str, number: int) -> None:
    how = KINDS[kind]
    for prefix, scale in how.scales.items():
        for unit, value in how.units.items():
            word = f"{prefix}{unit}"
            if word not in how.units or not prefix:  # a metre is no milli-nothing
                assert parse_quantity(kind, f"{number} {word}") == pytest.approx(number * scale * value)


@given(st.floats(1e3, 1e17))
def test_what_is_said_is_read_again(amount: float) -> None:
    for kind, unit in (("compute", "FLOP/s"), ("rate", "bps"), ("cycles", "Hz")):
        assert parse_quantity(kind, quantity_text(amount, unit)) == pytest.approx(amount, rel=6e-3)


def test_a_field_says_its_kind_by_its_name() -> None:
    assert [quantity_kind(name) for name in ("main_up_bps", "cpu_hz", "tau_s", "radius_m", "lr", "s")] == [
        "rate", "cycles", "seconds", "metres", None, None,
    ]  # fmt: skip
    assert parse_setting("lr", "0.1") == "0.1"
    assert parse_setting("cpu_hz", "[1GHz, 2GHz]") == [1e9, 2e9]


def test_settings_take_units() -> None:
    config = read_config(
        None,
        [
            "network.main_up_bps=[100Mbps,1Gbps]",
            "network.subchannel_hz=2MHz",
            "fleet.cpu_hz=[0, 5GHz]",
            'fleet.storage_bits=["1GiB", "2GiB"]',
            "train.tau_s=5min",
        ],
    )
    assert config.network.main_up_bps == (1e8, 1e9)
    assert config.network.subchannel_hz == 2e6
    assert config.fleet.cpu_hz == (0, 5e9)
    assert config.fleet.storage_bits == (2**33, 2**34)
    assert config.train.tau_s == 300


def test_a_setting_with_a_wrong_unit_is_one_line() -> None:
    with raises(InputError, "config network.main_hz is '5GHy'", "'GHy'", "give"):
        read_config(None, ["network.main_hz=5GHy"])


def test_a_small_number_without_a_unit_is_doubted_where_no_name_says_the_unit() -> None:
    with pytest.raises(InputError, match="100 of what"):
        parse_quantity("rate", "100", doubt=True)
    assert parse_quantity("rate", "100bps", doubt=True) == parse_quantity("rate", "100") == 100
    assert parse_quantity("rate", "1e6", doubt=True) == 1e6
    assert parse_quantity("power", "2", doubt=True) == 2
