"""What a framework sends is what its clock charges: bits on each link over the link's rate are the seconds of its phases.

Training counts bytes, the clock counts bits of a cost table; they share no code. Links are measured, one rate each for all.
"""

import numpy as np
import pytest

from hsfl.config import read_config
from hsfl.framework_table import METHODS
from hsfl.frameworks import find_framework
from hsfl.planning.rounds.participation import choose_clients
from hsfl.runs.loop import make_clock
from hsfl.runs.prepare import prepare

RATES = {"main_up": 1e6, "main_down": 2e6, "edge_up": 3e6, "edge_down": 5e6}
PHASES = {"main_up": "smashed", "main_down": "gradient", "edge_up": "model_up", "edge_down": "model_down"}
WORDS = ["data.limit=120", "data.limit_test=20", "fleet.num_clients=4", "train.batch_size=8", "model.input=[1,8,8]"]
WORDS += ["network.kind=measured", *(f"network.{link}_bps={bps}" for link, bps in RATES.items())]
OPTIONS = ["fsl,options.fsl.average=server", "psl,options.psl.cut_gradient=true", "sl,options.sl.hand_optimizer=true"]
OPTIONS += ["cpsl,options.cpsl.cut=cluster", "hsfl,allocation.policy=proposed", "fsl,allocation.policy=proposed"]


CODED = (
    ["link.up=int8", "link.down=float16", "link.model=int8"],
    ["link.up=topk:0.25", "link.down=int8", "link.model=float16"],
)


@pytest.mark.parametrize("codecs", CODED, ids=["int8", "topk"])
@pytest.mark.parametrize("label", list(METHODS) + OPTIONS)
def test_coded_bytes_over_rates_are_seconds(label: str, codecs: list[str]) -> None:
    """Batches are full here: what all samples of a batch share is charged to full batches."""
    check(label, [*codecs, "data.limit=128"])


@pytest.mark.parametrize("policy", ["even", "proposed"])
@pytest.mark.parametrize("server", ["shares", "queue"])
def test_bytes_of_mixed_codecs_over_rates_are_seconds(server: str, policy: str) -> None:
    check(
        f"hsfl,network.server={server},allocation.policy={policy}",
        ["fleet.cuts=[1,2,3,1]", "link.codecs=none,int8,topk:0.25/int8,float16", "link.model=int8", "data.limit=128"],
    )


@pytest.mark.parametrize("who", ["train.clients_per_round=4", "train.clients_per_round=3"])
@pytest.mark.parametrize("label", [*METHODS, *OPTIONS])
def test_bytes_over_rates_are_seconds(label: str, who: str) -> None:
    check(label, [who])


def check(label: str, words: list[str]) -> None:
    """PSL without BatchNorm: its gradients carry no buffers, but the clock charges whole heads in every step."""
    framework, *options = label.split(",")
    model = "mlp" if framework == "psl" else "cnn"
    settings = read_config(None, [*WORDS, f"framework={framework}", f"model.name={model}", *words, *options])
    bench = prepare(settings)
    algorithm = find_framework(framework)(bench.task)
    line, _ = make_clock(bench, algorithm).round(0, choose_clients(settings, 0))
    _, result = algorithm.round(algorithm.init(), np.flatnonzero(line.kept).tolist(), 0)
    charged = {link: RATES[link] * float(line.phase_s[phase].sum()) for link, phase in PHASES.items()}
    sent = {link: 8 * getattr(result.bytes, f"client_{link}") for link in PHASES}
    assert charged == pytest.approx(sent, rel=1e-9)
