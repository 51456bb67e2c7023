"""The clients' own test samples judge the model: what is counted is what a simulation counts on all of them together."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hsfl.codec_table import UP, choose_codec
from hsfl.config import parse_config
from hsfl.deploy.client import ClientProcess
from hsfl.deploy.client_round import Channels
from hsfl.deploy.client_setup import ClientSetup
from hsfl.deploy.main.main_round import Evaluation
from hsfl.deploy.main.remote_evaluation import EvaluateHandler, checked_tally
from hsfl.deploy.trust.identity import Identity, set_caller
from hsfl.deploy.wire.client_messages import Batch, Enter, Evaluate, Evaluated, Tallied
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.messages import pack_message
from hsfl.deploy.wire.server_messages import Seat
from hsfl.deploy.wire.transport import read_message
from hsfl.models.state import load_state
from hsfl.runs.client_data import read_data
from hsfl.runs.prepare import make_images, prepare
from hsfl.training.batches import Images
from hsfl.training.codecs.link_codecs import make_codec
from hsfl.training.evaluation import Quality, evaluate_model, num_batches, quality_of_tallies, tally, through_codec
from tests.deploy.fleet import RUN, changed, simulated
from tests.deploy.inside import Inside
from tests.deploy.kits import small_kit
from tests.naming import names, raises

NAMES = ("ada", "bo", "cy", "di")
ONE_ROUND = changed(RUN, train={"rounds": 1})
SIZE = RUN["train"]["batch_size"]


def judged(run: dict, kept: list[list[int]], counted: tuple[int, ...]) -> tuple[Quality, Quality]:
    """A simulation's model on the test samples of these clients: on all at once, and client by client in their batches."""
    config = parse_config(run)
    model, images = prepare(config).task.model, make_images(config, read_data(config), "test")
    load_state(simulated(run, kept), model)
    model.eval()
    mine = [torch.arange(k, len(images), 4) for k in counted]

    def some(where: torch.Tensor) -> Images:
        return replace(images, x=images.x[where], y=images.y[where])

    parts = [some(where) for where in mine]
    tallies = [tally(model, part, 10, batch, SIZE) for part in parts for batch in range(num_batches(part, SIZE))]
    return evaluate_model(model, some(torch.cat(mine)), 10), quality_of_tallies(tallies)


def check(inside: Inside, kept: list[list[int]], counted: tuple[int, ...]) -> None:
    together, apart = judged(inside.run, kept, counted)
    record = inside.rounds()[-1]
    assert record["test_loss"] == apart.loss == pytest.approx(together.loss, rel=1e-5)
    assert record["test_accuracy"] == together.accuracy
    assert record["balanced_accuracy"] == together.balanced_accuracy
    assert record["recall"] == list(together.recall)


def test_the_clients_test_samples_judge_as_a_simulation_judges_on_all_of_them(tmp_path: Path) -> None:
    inside = Inside(tmp_path, RUN, more={"evaluate": "clients"})
    assert inside.go().status == "finished"
    check(inside, [[0, 1, 2, 3]] * 2, (0, 1, 2, 3))
    said = [line for line in inside.events("main") if line["event"] == "evaluated by clients"]
    assert [(line["round"], line["clients"], line["samples"]) for line in said] == [(1, 4, 40), (2, 4, 40)]
    begun = [line["event"] for line in inside.events("edge") if "begins" in line["event"]]
    assert begun == ["round begins", "evaluation begins"] * 2


def test_each_clients_samples_are_judged_through_its_codec_too(tmp_path: Path) -> None:
    """They travel as they are. Ada's and cy's codecs change what comes to their tails; at the last cut, di's, nothing is coded."""
    codecs = ["float16", "none", "topk:0.1", "int8"]
    inside = Inside(tmp_path, changed(RUN, link={"codecs": codecs}, train={"rounds": 1}), more={"evaluate": "clients"})
    assert inside.go().status == "finished"
    (record,) = inside.rounds()
    config = parse_config(inside.run)
    model, images = prepare(config).task.model, make_images(config, read_data(config), "test")
    load_state(simulated(inside.run, [[0, 1, 2, 3]]), model)
    model.eval()
    tallies = {False: [], True: []}
    for k, (cut, text) in enumerate(zip(RUN["fleet"]["cuts"], codecs)):
        part = replace(images, x=images.x[k::4], y=images.y[k::4])
        codec = None if cut == 5 else make_codec(choose_codec("codec", text, UP))
        for is_coded in (False, True):
            way = through_codec(model, cut, codec) if codec is not None and is_coded else model
            tallies[is_coded] += [tally(way, part, 10, batch, SIZE) for batch in range(num_batches(part, SIZE))]
    plain, coded = (quality_of_tallies(tallies[is_coded]) for is_coded in (False, True))
    assert (record["test_loss"], record["test_accuracy"]) == (plain.loss, plain.accuracy)
    assert (record["coded"]["test_loss"], record["coded"]["test_accuracy"]) == (coded.loss, coded.accuracy)
    assert record["coded"]["test_loss"] != record["test_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["splitfed_v1", "fl"])
def test_so_they_do_in_other_frameworks(tmp_path: Path, framework: str) -> None:
    inside = Inside(
        tmp_path, changed(ONE_ROUND, fleet={"cuts": 2}) | {"framework": framework}, more={"evaluate": "clients"}
    )
    assert inside.go().status == "finished"
    check(inside, [[0, 1, 2, 3]], (0, 1, 2, 3))


class Odd(ClientProcess):
    """A device that does something else with its test samples."""

    async def _evaluate(self, setup: ClientSetup, order: Evaluate, channels: Channels) -> None:
        call = channels.main.stream("Evaluate")
        await call.write(pack_message(Enter(order.attempt)))
        await self.tell(setup, call)

    async def tell(self, setup: ClientSetup, call: object) -> None:
        raise NotImplementedError


class Leaver(Odd):
    """Loses its connection in mid-evaluation."""

    async def tell(self, setup: ClientSetup, call: object) -> None:
        assert self.channels is not None
        await self.channels.close()


class Liar(Odd):
    """Sends a good batch, and then one that is not."""

    async def tell(self, setup: ClientSetup, call: object) -> None:
        shape, labels = setup.kit.shapes[2], torch.zeros(SIZE, dtype=torch.int64)
        for number in (1.0, float("nan")):
            smashed = torch.full((SIZE, *shape), number)
            await call.write(pack_message(Batch(int(number != 1.0)), {"smashed": smashed, "labels": labels}))
        await call.write(pack_message(Evaluated(2)))
        await read_message(call)


class Staller(Odd):
    """Trains well, and sends none of its test samples: everybody waits for it until tau."""

    async def tell(self, setup: ClientSetup, call: object) -> None:
        await asyncio.sleep(60)


def run_as(inside: Inside, kind: type[ClientProcess], name: str) -> Callable:
    return lambda: kind(inside.client_settings(name), None, inside.log(name)).run_and_reconnect()


def test_a_client_that_goes_or_lies_in_an_evaluation_is_not_counted(tmp_path: Path) -> None:
    inside = Inside(tmp_path, ONE_ROUND, more={"evaluate": "clients"})
    others = run_as(inside, Leaver, "ada"), run_as(inside, Liar, "bo")
    assert inside.go(*others, honest=NAMES[2:]).status == "finished"
    check(inside, [[0, 1, 2, 3]], (2, 3))
    refused = [line for line in inside.events("main") if line["event"] == "message refused" and line["client"] == "bo"]
    assert [line["reason"] for line in refused] == ["not_finite"]


def test_a_client_that_stalls_in_every_evaluation_is_benched(tmp_path: Path) -> None:
    """Its update counts, and its lateness does, too: it costs tau once, and not in every round."""
    run = changed(RUN, train={"rounds": 3, "tau_s": 12.0})
    inside = Inside(tmp_path, run, more={"evaluate": "clients", "bench_after": 1, "min_clients": 3, "first_clients": 4})
    assert inside.go(run_as(inside, Staller, "di"), honest=NAMES[:3]).status == "finished"
    assert [record["kept"] for record in inside.rounds()] == [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2]]
    (line,) = [line for line in inside.events("main") if line["event"] == "client benched"]
    assert line["client"] == "di"
    names(line["why"], "late")
    said = [line for line in inside.events("main") if line["event"] == "evaluated by clients"]
    assert [(line["clients"], line["of"]) for line in said] == [(3, 4), (3, 3), (3, 3)]


def test_a_client_has_one_stream_in_an_evaluation() -> None:
    evaluation = Evaluation(1, {name: Seat(k, name, 2, 20, 20) for k, name in enumerate(NAMES)})
    evaluate_handler = EvaluateHandler(SimpleNamespace(evaluation=evaluation))
    set_caller(Identity("ada", "client", 0))
    assert evaluate_handler._find_seat(Enter(evaluation.attempt)) == (evaluation, evaluation.seats["ada"])
    for _ in range(2):  # while the first stream is open, and after its end
        with raises(WireError, "ada", "evaluation"):
            evaluate_handler._find_seat(Enter(evaluation.attempt))
        evaluation.leave(0)


@pytest.mark.parametrize(
    ("hits", "counts"), [([1], [1]), ([2, *[0] * 9], [1, *[0] * 9]), ([0] * 10, [9, *[0] * 9]), ([0] * 10, [0] * 10)]
)
def test_a_tally_that_cannot_be_is_refused(hits: list[int], counts: list[int]) -> None:
    with raises(WireError, "test samples"):
        checked_tally(small_kit(), Tallied(0, 1.0, hits, counts))
    good = checked_tally(small_kit(), Tallied(0, 1.0, [1] * 4 + [0] * 6, [2] * 4 + [0] * 6))
    assert good.num_samples == SIZE
