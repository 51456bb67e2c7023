"""Bytes on each link equal the sizes computed by hand."""

import pytest
import torch

from hsfl.frameworks import find_framework
from tests.laws.bench import SHAPE, in_clusters, make_task

# The small CNN on 1x12x12, float32: smashed data per sample after each unit, and bytes of each unit.
SMASHED = [1 * 12 * 12, 16 * 6 * 6, 32 * 3 * 3, 64 * 1 * 1, 64]


def conv_bytes(inputs: int, outputs: int) -> int:
    weights = inputs * outputs * 9 + outputs
    norm = 4 * outputs  # weight, bias, running mean and variance
    return 4 * (weights + norm) + 8  # and the int64 counter


UNITS = [conv_bytes(1, 16), conv_bytes(16, 32), conv_bytes(32, 64), 4 * (64 * 64 + 64), 4 * (64 * 4 + 4)]
COUNTS = [4, 8, 6]


def link_bytes(
    framework: str, cuts: list[int], kept: list[int], round_index: int = 0, **options: object
) -> dict[str, int]:
    task = make_task(cuts, COUNTS, dtype=torch.float32, options=options)
    algorithm = find_framework(framework)(task)
    _, result = algorithm.round(algorithm.init(), kept, round_index)
    return vars(result.bytes)


def test_hsfl() -> None:
    cuts, kept = [2, 3, 5], [0, 1, 2]
    got = link_bytes("hsfl", cuts, kept)
    smashed = 4 * (4 * SMASHED[2] + 8 * SMASHED[3])  # client 2 holds the whole model and sends none
    heads = sum(sum(UNITS[:cut]) for cut in cuts)
    common = UNITS[2:5]  # cuts 2..5: units 2, 3, 4 lie on both servers
    numbers = (common[0] - 8) // 4 + 1 + common[1] // 4 + common[2] // 4
    assert got == {
        "client_main_up": smashed,
        "client_main_down": smashed,
        "client_edge_up": heads,
        "client_edge_down": heads,
        "edge_main": 2 * 8 * (numbers + 3),
    }


def test_hsfl_with_a_dropped_client_and_raw_data() -> None:
    got = link_bytes("hsfl", [0, 3, 3], [0, 1])
    assert got["client_main_up"] == 4 * (4 * SMASHED[0] + 8 * SMASHED[3])
    assert got["client_main_down"] == 4 * 8 * SMASHED[3]  # nobody wants the gradient of raw data
    assert got["client_edge_up"] == sum(UNITS[:3])
    assert got["client_edge_down"] == 2 * sum(UNITS[:3])  # the dropped client gets the new model


@pytest.mark.parametrize("framework", ["splitfed_v1", "fsl", "splitfed_v2"])
def test_one_cut(framework: str) -> None:
    got = link_bytes(framework, [2, 3, 4], [0, 1, 2])
    smashed, heads = 4 * sum(COUNTS) * SMASHED[2], 3 * sum(UNITS[:2])
    assert got == {
        "client_main_up": smashed,
        "client_main_down": smashed,
        "client_edge_up": heads,
        "client_edge_down": heads,
        "edge_main": 0,
    }


def test_sl_and_cpsl_hand_the_head_on() -> None:
    for framework in ("sl", "cpsl"):
        got = link_bytes(framework, [2, 3, 4], [0, 2])
        assert got["client_edge_up"] == got["client_edge_down"] == 2 * sum(UNITS[:2])
        assert got["client_main_up"] == got["client_main_down"] == 4 * 10 * SMASHED[2]


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_sl_counts_the_optimiser_that_it_hands_on(optimizer: str, states: int) -> None:
    options = {"sl": {"hand_optimizer": True}}
    task = make_task([2, 3, 4], COUNTS, dtype=torch.float32, optimizer=optimizer, options=options)
    sl = find_framework("sl")(task)
    state, result = sl.round(sl.init(), [0, 1, 2], 0)
    travels = sum(t.nbytes for name, t in state.tensors.items() if name.startswith("head."))
    assert travels == sl.handed_bytes
    assert (travels > 0) == (states > 0)
    assert result.bytes.client_edge_up == result.bytes.client_edge_down == 3 * (sum(UNITS[:2]) + travels)


def test_fl_moves_models_only() -> None:
    got = link_bytes("fl", [2, 3, 4], [0, 2])
    whole = sum(UNITS)
    assert got["client_edge_up"] == 2 * whole
    assert got["client_edge_down"] == 3 * whole
    assert got["client_main_up"] == got["client_main_down"] == got["edge_main"] == 0


def test_cl_uploads_raw_data_once() -> None:
    raw = 4 * sum(COUNTS) * SHAPE[1] * SHAPE[2]
    assert link_bytes("cl", [2, 2, 2], [])["client_main_up"] == raw
    assert sum(link_bytes("cl", [2, 2, 2], [], round_index=1).values()) == 0


def test_psl_moves_gradients_every_step() -> None:
    """Batches of round(3 * 4 * n / 18) = 3, 5, 4: clients make 1 (4 = 3 + a lone one), 2 and 2 steps."""
    got = link_bytes("psl", [2, 2, 2], [0, 1, 2])
    weights = sum(UNITS[:2]) - 2 * 8 - 4 * 2 * (16 + 32)  # less counters and running statistics
    buffers = sum(UNITS[:2]) - weights
    assert got["client_edge_up"] == weights * (1 + 2 + 2) + 3 * buffers
    assert got["client_edge_down"] == weights * 2 * 3 + 3 * buffers
    assert link_bytes("psl", [2, 2, 2], [0, 1, 2], psl={"cut_gradient": True})["client_edge_up"] == 0


def test_fsl_server_moves_no_head() -> None:
    got = link_bytes("fsl", [2, 2, 2], [0, 1, 2], fsl={"average": "server"})
    assert got["client_edge_up"] == got["client_edge_down"] == 0


def test_locfedmix_moves_decoders_with_the_heads() -> None:
    """From 32 channels over 16 to the image's one, 3x3 each."""
    decoder = 4 * (32 * 16 * 9 + 16 + 16 * 1 * 9 + 1)
    got = link_bytes("locfedmix_sl", [2, 3, 4], [0, 2])
    smashed = 4 * 10 * SMASHED[2]
    assert got == {
        "client_main_up": smashed,
        "client_main_down": smashed,
        "client_edge_up": 2 * (sum(UNITS[:2]) + decoder),
        "client_edge_down": 3 * (sum(UNITS[:2]) + decoder),  # the dropped client gets both too
        "edge_main": 0,
    }


def test_cpsl_moves_units_between_the_servers_where_the_cut_changes() -> None:
    """Cuts 3, 1, 2 in turn: units 1 and 2 to the main server, 1 back; the next round begins with 2 back, from cut 2."""
    task = make_task([1, 2, 3], COUNTS, dtype=torch.float32, options={"cpsl": {"cut": "cluster"}})
    task = in_clusters(task, (1, 2, 0))
    moved = []
    state = find_framework("cpsl")(task).init()
    for round_index in range(2):
        fresh = find_framework("cpsl")(task)  # state and keys decide, not what a framework remembers
        state, result = fresh.round(state, [0, 1, 2], round_index)
        moved.append(result.bytes.edge_main)
        heads = [sum(UNITS[:1]), sum(UNITS[:2]), sum(UNITS[:3])]
        assert result.bytes.client_edge_up == result.bytes.client_edge_down == sum(heads)
        assert result.bytes.client_main_up == 4 * sum(n * SMASHED[cut] for n, cut in zip(COUNTS, (1, 2, 3)))
    assert moved == [UNITS[1] + UNITS[2] + UNITS[1], UNITS[2] + UNITS[1] + UNITS[2] + UNITS[1]]
