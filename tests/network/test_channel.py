"""Draws of the links: distributions, path loss by hand, the same draws for everyone, histories, and bad input."""

import numpy as np
import pytest

from hsfl.errors import InputError
from hsfl.network import channel, history
from hsfl.network.channel import Measured, Ofdma, PathLoss, RoundDraw, draw_round, draw_rounds
from hsfl.network.devices import Fleet
from hsfl.network.latency import Rates
from tests.naming import raises

FLEET = Fleet(np.array([1e9, 4e9, 2e9]), 1.0, 1.0, 3)
RATES = Rates(*(np.array([1.0, 2.0, 3.0]) * 10**n for n in range(4)))


def same(one: RoundDraw, other: RoundDraw) -> bool:
    arrays = [history._arrays(draw) for draw in (one, other)]
    return arrays[0].keys() == arrays[1].keys() and all(
        (arrays[0][name] == arrays[1][name]).all() for name in arrays[0]
    )


def test_a_round_is_a_key_and_nothing_else():
    links = Ofdma(num_subchannels=4)
    assert same(draw_round(FLEET, links, 7, 2), draw_round(FLEET, links, 7, 2))
    other = draw_round(FLEET, links, 7, 3)
    assert not same(draw_round(FLEET, links, 7, 2), other)
    wider = draw_round(FLEET, Ofdma(num_subchannels=9), 7, 3)
    assert (wider.cpu_hz == other.cpu_hz).all()  # more subchannels move no speed
    assert not same(other, draw_round(FLEET, links, 7, 3, key="samples"))  # the planner does not see the future


@pytest.mark.parametrize(("fading", "mean"), [("normal", np.sqrt(2 / np.pi)), ("rayleigh", 1.0)])
def test_fading_has_its_mean_and_its_floor(fading, mean):
    draws = draw_rounds(FLEET, Ofdma(num_subchannels=50, fading=fading), 0, range(400))
    assert draws.main_gain.shape == draws.edge_gain.shape == (400, 3, 50)
    assert draws.main_gain.mean() == pytest.approx(mean, rel=0.02)
    assert draws.main_gain.min() == 0.01
    assert abs(np.corrcoef(draws.main_gain.ravel(), draws.edge_gain.ravel())[0, 1]) < 0.02


def test_speeds_vary_by_ten_percent_around_their_means():
    speed = draw_rounds(FLEET, Ofdma(), 0, range(2000)).cpu_hz / FLEET.cpu_hz
    np.testing.assert_allclose(speed.mean(axis=0), 1, atol=0.01)
    np.testing.assert_allclose(speed.std(axis=0), 0.1, rtol=0.1)
    wild = draw_rounds(FLEET, Ofdma(), 0, range(100), speed_std=3.0).cpu_hz / FLEET.cpu_hz
    assert wild.min() == pytest.approx(channel.SPEED_FLOOR)
    assert (draw_round(FLEET, Ofdma(), 0, 0, speed_std=0.0).cpu_hz == FLEET.cpu_hz).all()


def test_path_loss_by_hand():
    """Exponent 3, 30 dB at 1 m: 10 m away loses 60 dB, 100 m 90 dB; nearer than 1 m is 1 m."""
    loss = PathLoss(client_m=[[10, 0], [0, 100], [0, 0]], main_m=[0, 0], edge_m=[10, 100])
    np.testing.assert_allclose(loss.gain(loss.main_m), [1e-6, 1e-9, 1e-3])
    near, far = (draw_round(FLEET, Ofdma(path_loss=p), 0, 0) for p in (None, loss))
    np.testing.assert_allclose(far.main_gain, near.main_gain * np.array([[1e-6], [1e-9], [1e-3]]))
    np.testing.assert_allclose(far.edge_gain, near.edge_gain * loss.gain(loss.edge_m)[:, None])


def test_places_fill_a_disc():
    place = channel.random_positions(4000, 50.0, np.random.default_rng(0))
    distance = np.linalg.norm(place, axis=1)
    assert distance.max() <= 50
    assert (distance < 25).mean() == pytest.approx(0.25, abs=0.02)


def test_measured_links_are_what_was_measured():
    draw = draw_round(FLEET, Measured(RATES), 0, 5)
    assert (draw.rates.edge_up_bps == RATES.edge_up_bps).all()
    assert draw.main_gain is None
    assert draw_rounds(FLEET, Measured(RATES), 0, range(4)).rates.main_up_bps.shape == (4, 3)
    assert draw.take(np.array([False, True, True])).rates.main_up_bps.tolist() == [2, 3]


@pytest.mark.parametrize("suffix", ["csv", "npz"])
@pytest.mark.parametrize("links", [Ofdma(num_subchannels=3), Measured(RATES)])
def test_a_history_is_recorded_and_played_back_exactly(tmp_path, links, suffix):
    drawn = draw_rounds(FLEET, links, 1, range(4))
    path = tmp_path / f"history.{suffix}"
    history.write_history(drawn, path)
    read = history.read_history(path, num_clients=3)
    assert same(read, drawn)
    assert list(tmp_path.iterdir()) == [path]
    for round in range(9):  # a longer run starts again from the front
        assert same(history.round_of_history(read, round), draw_round(FLEET, links, 1, round % 4))


def test_rows_of_a_history_may_come_in_any_order(tmp_path):
    path = tmp_path / "history.csv"
    header = "round,client,cpu_hz,main_up_bps,main_down_bps,edge_up_bps,edge_down_bps"
    path.write_text(f"{header}\n1,0,5,1,2,3,4\n0,0,6,5,6,7,8\n")
    read = history.read_history(path)
    assert read.cpu_hz.tolist() == [[6], [5]]
    assert read.rates.edge_down_bps.tolist() == [[8], [4]]


GAINS = "round,client,cpu_hz,main_gain_0,edge_gain_0"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("begins with ''", "first columns", "round,client")),
        (GAINS, ("no rows",)),
        (f"{GAINS}\n0,0,1,1", ("line 2 has 4 values", "header has 5")),
        (f"{GAINS}\n0,0,1,x,1", ("line 2", "main_gain_0 is 'x'", "not a number")),
        (f"{GAINS}\n0,0,1,0,1", ("main_gain of client 0", "subchannel 0 is 0.0", "positive")),
        (f"{GAINS}\n0,0,1,1,1\n0,1,-3,1,1", ("cpu_hz of client 1", "round 0 is -3.0")),
        (f"{GAINS}\n0,0,1,nan,1", ("main_gain of client 0", "is nan")),
        (f"{GAINS}\n0,0,1,1,1\n0,0,1,1,1", ("client 0", "2 times in round 0")),
        (f"{GAINS}\n0,0,1,1,1\n1,1,1,1,1", ("client 1", "0 times in round 0")),
        (f"{GAINS}\n-1,0,1,1,1", ("round is -1", "numbered from 0")),
        (f"{GAINS}\n0.5,0,1,1,1", ("round is 0.5", "numbered from 0")),
        (f"{GAINS}\n9000000000,0,1,1,1", ("round is 9e+09", "numbered from 0")),
        (f"{GAINS}\nnan,0,1,1,1", ("round is nan", "numbered from 0")),
        ("round,client,cpu_hz,main_gain_1,edge_gain_0\n0,0,1,1,1", ("column 'main_gain_1'", "out of order")),
        ("round,client,cpu_hz,main_gain_0\n0,0,1,1", ("holds cpu_hz, main_gain", "cpu_hz and either")),
        (f"{GAINS},edge_gain_1\n0,0,1,1,1,1", ("more gains to one server",)),
    ],
)
def test_bad_histories_are_one_line_errors(tmp_path, text, parts):
    path = tmp_path / "history.csv"
    path.write_text(text)
    with raises(InputError, *parts) as error:
        history.read_history(path)
    assert "\n" not in str(error.value)


def test_one_absurd_number_makes_no_table_of_rows_squared(tmp_path):
    rows = [f"{r},0,1,1,1" for r in range(1499)]
    (tmp_path / "history.csv").write_text("\n".join([GAINS, *rows, "1499,1499,1,1,1"]))
    with raises(InputError, "1500 rows", "1500 clients"):
        history.read_history(tmp_path / "history.csv")


def test_a_spreadsheets_history(tmp_path):
    """A byte order mark, Windows line ends and blank lines at the end."""
    drawn, path = draw_rounds(FLEET, Ofdma(num_subchannels=2), 1, range(2)), tmp_path / "history.csv"
    history.write_history(drawn, path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\r\n\r\n")
    assert same(history.read_history(path), drawn)


def test_other_bad_history_files(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        history.read_history(tmp_path / "none.csv")
    (tmp_path / "broken.npz").write_bytes(b"not a zip")
    with pytest.raises(InputError, match="cannot read"):
        history.read_history(tmp_path / "broken.npz")
    np.savez(tmp_path / "pickled.npz", cpu_hz=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="cannot read"):
        history.read_history(tmp_path / "pickled.npz")
    with raises(InputError, ".csv or .npz"):
        history.read_history(tmp_path / "history.txt")
    history.write_history(draw_rounds(FLEET, Ofdma(), 0, range(2)), tmp_path / "history.npz")
    with raises(InputError, "3 clients", "fleet has 5"):
        history.read_history(tmp_path / "history.npz", num_clients=5)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: Ofdma(subchannel_hz=0), ("network.subchannel_hz is 0",)),
        (lambda: Ofdma(noise_w=-1), ("network.noise_w is -1",)),
        (lambda: Ofdma(num_subchannels=0), ("network.num_subchannels is 0",)),
        (lambda: Ofdma(fading="rice"), ("network.fading is 'rice'", "normal or rayleigh")),
        (lambda: PathLoss([[1, 2, 3]], [0, 0], [0, 0]), ("path_loss.client_m", "positions")),
        (lambda: Measured(Rates(*[np.array([1.0, 0.0])] * 4)), ("main_up_bps", "client 1 is 0.0")),
        (lambda: Measured(Rates(*[np.ones(2)] * 3, np.ones(3))), ("edge_down_bps is (3,)", "main_up_bps is (2,)")),
        (lambda: RoundDraw(np.array([1.0, -1.0]), rates=RATES), ("cpu_hz", "client 1 is -1.0")),
        (
            lambda: RoundDraw(np.ones(2), np.ones((2, 3)), np.zeros((2, 3))),
            ("edge_gain of client 0", "subchannel 0 is 0.0"),
        ),
        (lambda: RoundDraw(np.ones(2), np.ones((3, 3)), np.ones((3, 3))), ("main_gain is (3, 3)", "must agree")),
        (lambda: RoundDraw(np.ones(2)), ("gains to both servers", "four rates")),
        (
            lambda: draw_round(FLEET, Ofdma(path_loss=PathLoss([[1, 2]], [0, 0], [0, 0])), 0, 0),
            ("1 positions", "3 clients"),
        ),
        (lambda: draw_rounds(FLEET, Ofdma(), 0, []), ("no rounds to draw",)),
    ],
)
def test_bad_links_are_one_line_errors(make, parts):
    with raises(InputError, *parts) as error:
        make()
    assert "\n" not in str(error.value)
