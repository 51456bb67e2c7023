"""The main server's side of an evaluation by the clients' own test samples: each client runs the averaged head on its
samples, the tail runs here, and only sums of loss, hits and samples are kept. It serves the stream Evaluate."""

import asyncio
from functools import partial
from typing import Any

import torch

from hsfl.deploy.admin.fleet_orders import tau_now_s
from hsfl.deploy.main.coded_judgement import Judgement, Tallies
from hsfl.deploy.main.handlers import SharedState
from hsfl.deploy.main.main_round import Evaluation, MainRound, check_batch, checked_loss
from hsfl.deploy.model_kit import ModelKit
from hsfl.deploy.trust.identity import caller
from hsfl.deploy.wire.client_messages import Batch, Ended, Enter, Evaluated, Tallied
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.message_fields import MOST_SAMPLES
from hsfl.deploy.wire.messages import expect_any_message, expect_message, pack_message
from hsfl.deploy.wire.server_messages import Seat
from hsfl.deploy.wire.transport import read_request
from hsfl.models.state import UnitState, load_state
from hsfl.training.codecs.codec import Codec
from hsfl.training.codecs.link_codecs import LinkCodecs
from hsfl.training.evaluation import Tally, tally_output
from hsfl.training.link import Link


class EvaluateHandler:
    """Asks the clients of a round to judge its model, and is the handler of the stream Evaluate."""

    def __init__(self, shared: SharedState) -> None:
        self.shared = shared
        self._late = set[str]()  # clients that were not done in the last evaluation, and let everybody wait until tau

    def take_late(self) -> set[str]:
        """Who was late in the evaluation of the round that ends, told once."""
        late, self._late = self._late, set()
        return late

    async def judgement(self, open_round: MainRound, whole: UnitState) -> Judgement:
        """How good a round's model is on the test samples of the clients that the round kept. They have tau for it."""
        shared, kept = self.shared, open_round.kept()
        seats = {
            seat.name: seat for seat in open_round.seats() if seat.seat in kept and seat.seat in shared.roster.members
        }
        if not seats:
            return Judgement()
        await shared.compute.run(partial(_load, shared.kit, whole))
        at_cuts = {seat.seat: open_round.tails[seat.seat].test_codec for seat in seats.values()}
        codecs = {seat: at.codec for seat, at in at_cuts.items() if at is not None}
        evaluation = Evaluation(open_round.round + 1, seats, codecs=codecs)
        await shared.edge.open_round(evaluation.round, evaluation.attempt, list(seats.values()), evaluates=True)
        shared.evaluation = evaluation
        try:
            for seat in seats.values():
                if not shared.roster.send(seat.seat, pack_message(evaluation.order(seat))):
                    evaluation.leave(seat.seat)
            await asyncio.wait_for(evaluation.over.wait(), tau_now_s(shared))
        except TimeoutError:  # the line below says how many were counted
            done = evaluation.tallies.keys() | evaluation.gone
            self._late = {seat.name for seat in seats.values() if seat.seat not in done}
        finally:
            shared.evaluation = None
        judgement = evaluation.judgement()
        level = "info" if len(evaluation.tallies) == len(seats) else "warning"
        shared.log.event(
            "evaluated by clients", level, round=evaluation.round, clients=len(evaluation.tallies), of=len(seats), samples=evaluation.num_samples
        )  # fmt: skip
        return judgement

    async def evaluate(self, messages: Any, context: Any) -> None:
        """Count a client's test samples."""
        enter, _ = expect_message(await read_request(context), Enter)
        evaluation, seat = self._find_seat(enter)
        try:
            tallies = await self._tally_samples(seat, evaluation.codecs.get(seat.seat), context)
            if evaluation is not self.shared.evaluation:
                raise WireError("stale", "the evaluation is over")
            evaluation.finish(seat.seat, tallies)
            await context.write(pack_message(Ended()))
        finally:
            evaluation.leave(seat.seat)

    def _find_seat(self, enter: Enter) -> tuple[Evaluation, Seat]:
        """The evaluation and the seat of the client that calls. A client has one stream; it is not made anew."""
        evaluation, name = self.shared.evaluation, caller().name
        seat = evaluation.seats.get(name) if evaluation is not None and enter.attempt == evaluation.attempt else None
        if evaluation is None or seat is None or seat.seat in evaluation.gone | evaluation.entered:
            raise WireError("stale", f"{name} has no part in an evaluation now")
        evaluation.entered.add(seat.seat)
        return evaluation, seat

    async def _tally_samples(self, seat: Seat, codec: Codec | None, context: Any) -> Tallies:
        """The sums over all batches of a client. A batch after one that was not full is refused."""
        kit = self.shared.kit
        full, step = kit.config.train.batch_size, 0
        nothing = Tally(
            0.0, 0, (0,) * (2 * kit.num_classes)
        )  # as `Goal.sums` has them: hits of each class, then samples
        total = Tallies.alike(nothing)
        while True:
            message, tensors = expect_any_message(await read_request(context), Batch, Tallied, Evaluated)
            if isinstance(message, Evaluated):
                if message.steps != step:
                    raise WireError("order", f"the end after {message.steps} batches, where {step} came")
                return total
            num_samples = total.plain.num_samples
            if message.step != step or num_samples != step * full or num_samples >= MOST_SAMPLES:
                raise WireError("order", f"batch {message.step} where {step} comes next, or after the last")
            total, step = total.merged(await self._tally_batch(seat, codec, message, tensors)), step + 1

    async def _tally_batch(
        self, seat: Seat, codec: Codec | None, message: Batch | Tallied, tensors: dict[str, Any]
    ) -> Tallies:
        """The sums over one batch: the tail runs here, unless the client holds all units and has counted itself."""
        kit, whole = self.shared.kit, seat.cut == self.shared.kit.num_units
        if isinstance(message, Tallied) != whole or tensors.keys() != (set() if whole else {"smashed", "labels"}):
            raise WireError("protocol", f"{type(message).__name__} with tensors {sorted(tensors)} at cut {seat.cut}")
        if isinstance(message, Tallied):
            return Tallies.alike(checked_tally(kit, message))
        num_samples = tensors["labels"].numel()
        if not 0 < num_samples <= kit.config.train.batch_size:
            raise WireError("shape", f"a batch of {num_samples} test samples")
        cost = num_samples * float(self.shared.planner.cost.server_flops[seat.cut])
        self.shared.metrics.carried("client_main", "up", tensors["smashed"].nbytes)
        return await self.shared.compute.run(partial(_tally_tail, kit, seat.cut, codec, tensors), seat.seat, cost)


def checked_tally(kit: ModelKit, message: Tallied) -> Tally:
    """What a client counted. Impossible counts are refused: not one for each class, more hits than samples, more
    samples than a batch has."""
    sizes = {len(message.hits), len(message.counts)}
    fits = all(hits <= counts for hits, counts in zip(message.hits, message.counts))
    if sizes != {kit.num_classes} or not fits or not 0 < sum(message.counts) <= kit.config.train.batch_size:
        raise WireError("protocol", "a tally that no batch of test samples can have")
    return Tally(checked_loss(message.loss, sum(message.counts)), sum(message.counts), (*message.hits, *message.counts))


def _load(kit: ModelKit, whole: UnitState) -> None:
    load_state(whole, kit.model)
    kit.model.eval()


@torch.inference_mode()
def _tally_tail(kit: ModelKit, cut: int, codec: Codec | None, tensors: dict[str, Any]) -> Tallies:
    smashed, labels, tail = tensors["smashed"], tensors["labels"], kit.model.tail(cut)
    check_batch(kit, cut, labels.numel(), tensors)
    plain = tally_output(tail(smashed), labels, kit.num_classes)
    if codec is None:
        return Tallies.alike(plain)
    arrived = Link(LinkCodecs(up=codec)).carry("client_main_up", smashed)
    return Tallies(plain, tally_output(tail(arrived), labels, kit.num_classes))
