"""A round's model tested on the main server while the next round trains (`test_beside`).

The round is complete when its checkpoint is written, tested or not. Its record, which needs the quality, waits in the checkpoint's notes and is
added to the run folder when the test is over, before the next round counts. A main server that is killed in between finds the record there,
tests the model again, and comes to the same numbers. Each batch of the test takes its turn in the compute queue like a client's step.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hsfl.deploy.compute_queue import ComputeQueue
from hsfl.deploy.main.coded_judgement import CodecAtCut, Judgement, distinct_codecs, judge
from hsfl.deploy.model_kit import ModelKit
from hsfl.models.state import UnitState, load_state
from hsfl.runs.run_folder.records import RoundRecord
from hsfl.runs.run_folder.write_records import coded_note, finite_quality
from hsfl.training.aggregate import Diverged
from hsfl.training.batches import Images
from hsfl.training.evaluation import Quality, Tally, evaluation_batch_size, num_batches, quality_of_tallies, tally


def num_test_batches(test: Images, num_classes: int) -> int:
    """How many batches a test is made of."""
    return num_batches(test, evaluation_batch_size(test, num_classes))


@dataclass(frozen=True)
class Tested:
    """How good a model is, and the seconds in which the main server worked for that."""

    judgement: Judgement
    took_s: float


@dataclass(frozen=True)
class UnfinishedTest:
    """A test beside a round: of which round, and its model."""

    record: RoundRecord  # without a quality
    whole: UnitState
    task: "asyncio.Task[Tested]"


async def tested_in_turn(
    kit: ModelKit,
    compute: ComputeQueue,
    whole: UnitState,
    test: Images,
    cost: float,
    weight: float,
    test_codecs: Sequence[CodecAtCut | None],
) -> Tested:
    """Test a model batch by batch, without a codec and with each of the clients'; the same numbers as at once. cost: of a sample, and weight: as of
    `FairQueue`; under `longest` the test's way is what is left of it."""
    size, qualities = evaluation_batch_size(test, kit.num_classes), dict[CodecAtCut | None, Quality | None]()
    took_s = (await compute.timed(partial(_load_for_test, kit, whole))).took_s
    ways = [None, *distinct_codecs(test_codecs)]
    for num_done, at in enumerate(ways):
        model, tallies = kit.model if at is None else at.applied_to(kit.model), list[Tally]()
        for batch in range(num_batches(test, size)):
            num_left = len(test) - batch * size
            way_s = cost * (num_left + (len(ways) - 1 - num_done) * len(test)) / weight
            work = partial(_tally_or_none, model, test, kit.num_classes, batch, size)
            done = await compute.timed(work, "the test", cost * min(size, num_left), weight, way_s=way_s)
            took_s += done.took_s
            if done.answer is None:
                break
            tallies.append(done.answer)
        qualities[at] = quality_of_tallies(tallies) if len(tallies) == num_batches(test, size) else None
    return Tested(judge(test_codecs, qualities.__getitem__), took_s)


def _tally_or_none(*words: Any) -> Tally | None:
    """As `tally`; None where smashed data hold a number that no codec can send."""
    try:
        return tally(*words)
    except Diverged:
        return None


def _load_for_test(kit: ModelKit, whole: UnitState) -> None:
    load_state(whole, kit.model)
    kit.model.eval()


def with_quality(record: RoundRecord, judgement: Judgement) -> RoundRecord:
    """The record of a round whose model has been tested."""
    quality, no_quality = finite_quality(judgement.quality)
    return replace(
        record,
        test_loss=quality.loss if quality else None,
        test_accuracy=quality.accuracy if quality else None,
        balanced_accuracy=quality.balanced_accuracy if quality else None,
        recall=list(quality.recall) if quality else None,
        coded=coded_note(judgement.coded),
        no_quality=no_quality,
    )
