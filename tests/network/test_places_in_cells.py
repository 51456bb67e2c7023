"""Cells: who is in which, and the even allocation of several cells by hand."""

from dataclasses import replace

import numpy as np
import pytest

from hsfl.config import parse_config
from hsfl.errors import InputError
from hsfl.network.channel import Ofdma, antenna_positions, draw_round, nearest_cell
from hsfl.network.devices import Servers, draw_fleet
from hsfl.network.even_allocation import even_resources
from hsfl.planning.world import make_links
from hsfl.rng import stream
from tests.naming import raises


def links(**network: object) -> Ofdma:
    made = make_links(parse_config({"network": network}).network, 12, 3)
    assert isinstance(made, Ofdma)
    return made


def test_clients_are_dealt_by_index_where_no_place_is_known() -> None:
    assert links(cells=5).cell.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert links().cell is None


def test_clients_belong_to_the_nearest_antenna_and_lose_by_its_distance() -> None:
    places = [[0, 10], [0, 90], [5, 95], [100, 0]] * 3
    made = links(cells=3, positions_m=places, cells_m=[[0, 0], [0, 100], [100, 0]])
    assert made.cell.tolist() == [0, 1, 1, 2] * 3
    distance_m = np.linalg.norm(made.path_loss.client_m, axis=1)
    np.testing.assert_allclose(distance_m[:4], [10, 10, np.hypot(5, 5), 0])


def test_antennas_cover_a_disc_evenly() -> None:
    antennas = antenna_positions(100, 500.0)
    rng = np.random.default_rng(0)
    angle, distance_m = rng.uniform(0, 2 * np.pi, 20_000), 500 * np.sqrt(rng.random(20_000))
    cell = nearest_cell(distance_m[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1), antennas)
    counts = np.bincount(cell, minlength=100)
    assert counts.min() > 80
    assert counts.max() < 400  # 200 expected


@pytest.mark.parametrize(
    ("network", "parts"),
    [
        ({"cells": 13}, ("network.cells is 13", "12 clients")),
        ({"cells": 2, "radius_m": 10, "cells_m": [[0, 0]]}, ("network.cells_m has 1 places", "2 cells")),
    ],
)
def test_cells_that_cannot_be(network: dict, parts: tuple[str, ...]) -> None:
    with raises(InputError, *parts):
        links(**network)


@pytest.mark.parametrize("started", [None, np.arange(12) % 3 > 0])
def test_even_cells_are_rooms_of_their_own_with_one_server(started) -> None:
    """Each cell's rates are those of its clients alone; cycles are divided among all that take part."""
    fleet, radio, servers = draw_fleet(12, stream(0, "f"), num_units=4), Ofdma(num_subchannels=2), Servers()
    cell = np.arange(12) % 3
    drawn = draw_round(fleet, radio, 0, 0)
    joint = even_resources(replace(radio, cell=cell), fleet, servers, drawn, started=started)
    for number in range(3):
        inside = np.flatnonzero(cell == number)
        alone = even_resources(
            radio, fleet.take(inside), servers, drawn.take(inside), started=None if started is None else started[inside]
        )
        for name in ("main_up_bps", "main_down_bps", "edge_up_bps", "edge_down_bps"):
            np.testing.assert_allclose(getattr(joint.rates, name)[inside], getattr(alone.rates, name), rtol=1e-12)
    working = np.ones(12, bool) if started is None else started
    np.testing.assert_allclose(joint.server_hz[working], servers.main_hz / working.sum())


def test_one_cell_for_all_is_no_cells_to_the_bit() -> None:
    fleet, radio, servers = draw_fleet(12, stream(0, "f"), num_units=4), Ofdma(num_subchannels=5), Servers()
    drawn = draw_round(fleet, radio, 0, 0)
    without, one = (
        even_resources(each, fleet, servers, drawn) for each in (radio, replace(radio, cell=np.zeros(12, int)))
    )
    for name in ("main_up_bps", "main_down_bps", "edge_up_bps", "edge_down_bps"):
        np.testing.assert_array_equal(getattr(without.rates, name), getattr(one.rates, name))
    np.testing.assert_array_equal(without.server_hz, one.server_hz)
