"""The study of codecs without training: what is drawn is what the CSV holds, and a fleet's rounds obey what codecs promise."""

from pathlib import Path

import numpy as np
import pytest

import hsfl
from hsfl.config import parse_config
from hsfl.experiments import codec_rounds
from hsfl.experiments.codec_rounds import (
    CODINGS,
    CodecFleet,
    CodecFleetTask,
    CodedRounds,
    gain_over_fleets,
    read_codec_fleets,
    shorter_over_fleets,
    solve_codec_fleet,
)
from tests.naming import names

FASTER = {"none": 1.0, "float16": 1.5, "int8": 2.0, "topk": 2.5, "mix": 2.5}


def invented() -> list[CodecFleet]:
    """Codecs that shorten rounds by a factor, more on some fleets; own cuts gain a tenth, under int8 half of that."""
    return [
        CodecFleet(
            data,
            fleet,
            {
                name: CodedRounds(
                    (own_s := (100.0 + fleet) / factor ** (1 + fleet / 100)),
                    own_s * (1.05 if name == "int8" else 1.1),
                    [1, 2, 11],
                    ["int8", "topk:0.1/int8", "none"] if name == "mix" else [],
                    3,
                    "int8",
                )
                for name, factor in FASTER.items()
            },
            0.0,
        )
        for data in ("cifar10", "mnist")
        for fleet in range(1, 5)
    ]


def test_the_figure_and_the_tables_are_those_of_the_csv(tmp_path: Path) -> None:
    outcome = codec_rounds._draw_codecs(tmp_path, "quick", invented())
    (table,) = [path for path in outcome.files if path.suffix == ".csv"]
    fleets = read_codec_fleets(table)
    assert fleets == invented()
    assert (tmp_path / "codecs.png").stat().st_size > 10_000
    assert shorter_over_fleets(fleets, "mnist", "int8").mean == pytest.approx(2.0**1.025)
    assert gain_over_fleets(fleets, "mnist", "int8").mean == pytest.approx(1.05)
    assert gain_over_fleets(fleets, "mnist", "none").mean == pytest.approx(1.1)
    names(outcome.trends[0].ours, "2.035", "gain 1.050", "instead of 1.100")
    names(outcome.markdown.read_text(), "n = 4 fleets", "int8 4", "topk:0.1/int8 4", "none 4")


def test_a_fleet_is_never_slower_with_fewer_bits_that_cost_nothing_to_make() -> None:
    """On fast devices coding costs nothing, so that less to send cannot make the best round longer."""
    config = parse_config(
        {
            "data": {"name": "mnist"},
            "fleet": {"num_clients": 2, "cpu_hz": [1e13, 2e13], "cuts": "planned"},
            "network": {"num_subchannels": 2, "main_hz": 1e13},
            "allocation": {"policy": "proposed", "samples": 2, "patience": 1},
            "train": {"batch_size": 8},
        }
    )
    fleet = solve_codec_fleet(CodecFleetTask(config, (40, 80), 2), hsfl.cost("cnn", (1, 8, 8), 10, 8))
    assert set(fleet.rounds) == set(CODINGS)
    shorter = [fleet.shorter(name) for name in ("none", "float16", "int8", "topk")]
    assert (np.diff(shorter) >= -1e-3).all(), shorter
    assert fleet.shorter("mix") >= max(fleet.shorter("float16"), fleet.shorter("int8")) * (1 - 1e-3)
    assert all(fleet.gain(name) >= 1 - 0.01 for name in CODINGS)
    assert len(fleet.rounds["mix"].own_codecs) == 2
    assert fleet.rounds["int8"].single_codec == "int8"
