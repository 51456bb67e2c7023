"""What survives a restart of the main server: its position between two rounds, the checkpoint of its units, the run folder
and the joined model. A round is complete when its checkpoint is written."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial

from hsfl.deploy.admin.fleet_orders import judge_round, tau_now_s
from hsfl.deploy.main.coded_judgement import CodecAtCut, Judgement, judge
from hsfl.deploy.main.edge_link import EdgeLost
from hsfl.deploy.main.handlers import SharedState
from hsfl.deploy.main.main_round import MainRound
from hsfl.deploy.main.overlapping_evaluation import UnfinishedTest, tested_in_turn, with_quality
from hsfl.deploy.main.remote_evaluation import EvaluateHandler
from hsfl.deploy.main.run_record import measured_round_record, save_model, write_end
from hsfl.deploy.metrics import PHASES
from hsfl.deploy.model_kit import ModelKit
from hsfl.deploy.unit_store import UnitStore
from hsfl.deploy.wire.client_messages import RoundOver, Stop
from hsfl.deploy.wire.messages import pack_message
from hsfl.deploy.wire.transport import Backoff
from hsfl.files import checked_record
from hsfl.formats import rounded
from hsfl.frameworks.framework import join
from hsfl.models.state import UnitState, load_state
from hsfl.planning.rounds.round_clock import is_tested
from hsfl.runs.run_folder.folder import RunFolder, record_line
from hsfl.runs.run_folder.records import CheckedRound, RoundRecord, RunStanding, standing_after
from hsfl.runs.run_folder.round_phases import parts_of_round
from hsfl.runs.run_folder.write_records import Summary
from hsfl.training.aggregate import Diverged
from hsfl.training.batches import Images
from hsfl.training.evaluation import Quality, evaluate_model
from hsfl.training.link import LinkBytes

UNTESTED = "untested"  # the note with the record of a round whose test was under way
OVER_S = 5.0  # for clients to go when there are no more rounds


class MainCheckpoint:
    """The main server's position (round, state, standing) and its files. test: the operator's test samples; None where the clients' samples judge
    the model, or none do. classes: the names of the classes."""

    def __init__(self, shared: SharedState, folder: RunFolder, test: Images | None, classes: Sequence[str]) -> None:
        self.shared, self.folder, self.test, self.classes = shared, folder, test, tuple(classes)
        self.store = UnitStore(folder.path / "checkpoint")
        self.evaluate_handler = EvaluateHandler(shared)
        self.round, self.state, self.standing = 0, shared.kit.initial, RunStanding(0, None, None)
        self.sim_time_s = 0.0  # modelled seconds of all rounds so far
        self.counted = dict[
            int, str
        ]()  # the attempt in which each seat was counted last: devices remember what was lost of that head
        self.test_under_way: UnfinishedTest | None = None
        self.untested: RoundRecord | None = None  # of the last completed round, whose test a restart has interrupted

    def restore(self) -> None:
        """Go on from the last completed round, if there is one."""
        rounds = self.store.rounds()
        if not rounds:
            return
        self.state, notes = self.store.load(rounds[-1], self.shared.kit)
        self.standing = checked_record(notes["progress"], RunStanding, "the checkpoint's progress")
        self.shared.control.restore(notes.get("fleet"))
        self.counted = {int(seat): str(attempt) for seat, attempt in json.loads(notes.get("counted", "{}")).items()}
        self.round = self.standing.rounds_done
        records = self.folder.rounds()
        if UNTESTED in notes and len(records) < self.round:
            self.untested = checked_record(notes[UNTESTED], CheckedRound, "the checkpoint's record")
        self.folder.keep_rounds(self.round - (self.untested is not None))
        records = [*records[: self.round], *([self.untested] if self.untested is not None else [])]
        if records:
            self.standing = standing_after(self.standing, records[-1])  # its test may be younger than the checkpoint
            self.sim_time_s = records[-1].sim_time_s
        self.shared.log.event("goes on from the last completed round", round=self.round)

    async def write_round(self, open_round: MainRound, after: UnitState, began_s: float) -> None:
        """Write a round into the run folder. The round is complete when the checkpoint is written. after: the new
        state; began_s: when the round began, by `perf_counter`."""
        kept, train = open_round.agreed, self.shared.kit.config.train
        whole, judgement = None, Judgement()
        tested = self.shared.settings.evaluate != "none" and is_tested(train, open_round.round)
        beside = tested and self.shared.settings.test_beside and open_round.round + 1 < train.rounds
        if tested or self.test_under_way is not None:
            with open_round.timing("test"):
                await self.end_test()
                if tested:
                    whole, judgement = await self._join_and_evaluate(open_round, after, beside)
        measured = {seat: self._measured_phases(open_round, seat) for seat in kept}
        tested_s = time.perf_counter()
        record = measured_round_record(
            self.shared.kit, open_round.round, self.sim_time_s, open_round.plan, open_round.tails, kept, measured, self._link_bytes(open_round), judgement
        )  # fmt: skip
        if record.no_quality is not None:
            self.shared.log.event("no quality", "warning", round=record.round, why=record.no_quality)
        self.standing = standing_after(self.standing, record)
        if whole is not None and self.standing.best_round == record.round:
            save_model(self.folder, whole, best=True)
        judge_round(self.shared, open_round, kept, is_complete=True, late=self.evaluate_handler.take_late())

        def end_record() -> None:
            nonlocal record
            now_s = time.perf_counter()
            open_round.ending_s["checkpoint"] = now_s - tested_s
            record = replace(record, wall_s=now_s - began_s, ending_s=dict(open_round.ending_s))
            if not beside:
                self.folder.append(record)

        untested = replace(record, wall_s=time.perf_counter() - began_s, ending_s=dict(open_round.ending_s))
        counted = self.counted | dict.fromkeys(kept, open_round.attempt)
        self._save_checkpoint(after, counted, end_record, untested if beside else None)
        self.sim_time_s = record.sim_time_s
        if beside and whole is not None:
            self._begin_test(record, whole)
        self._close_round(open_round, record, measured)

    def _begin_test(self, record: RoundRecord, whole: UnitState) -> None:
        """Test a round's model from now on. whole: the joined model."""
        assert self.test is not None, "only the operator's own test samples are tested beside a round"
        kit, planner = self.shared.kit, self.shared.planner
        testing = tested_in_turn(
            kit,
            self.shared.compute,
            whole,
            self.test,
            float(planner.cost.server_forward_flops[0]),
            planner.main_flops_per_s,
            _test_codecs_of(record, kit),
        )
        self.test_under_way = UnfinishedTest(record, whole, asyncio.create_task(testing))

    async def test_again(self) -> None:
        """Test the model whose test a restart has interrupted. Where nobody can test it any more its record stays without a quality."""
        if self.untested is None:
            return
        if self.test is None:
            self.folder.append(self.untested)
        else:
            self._begin_test(self.untested, await self._join_model(self.round, self.state))
        self.untested = None

    async def end_test(self) -> None:
        """Wait for the test that is under way, and write the record of its round."""
        if self.test_under_way is None:
            return
        before = self.test_under_way
        tested = await asyncio.shield(before.task)
        record = with_quality(before.record, tested.judgement)
        if record.no_quality is not None:
            self.shared.log.event("no quality", "warning", round=record.round, why=record.no_quality)
        self.standing = standing_after(self.standing, record)
        if self.standing.best_round == record.round:
            save_model(self.folder, before.whole, best=True)
        self.folder.append(record)
        self.shared.planner.learn_test(tested.took_s)
        self.test_under_way = None
        self.shared.log.event("round tested", round=record.round, test_accuracy=_four_digits(record.test_accuracy))

    async def _join_and_evaluate(
        self, open_round: MainRound, after: UnitState, beside: bool
    ) -> tuple[UnitState, Judgement]:
        """The joined model, and how good it is, unless it is tested beside the next round. The edge server has the round on its disk already, so an edge server
        that is away is waited for, up to tau from now. Only then is EdgeLost raised and the round made again."""
        clock, backoff = asyncio.get_running_loop().time, Backoff()
        until_s = clock() + tau_now_s(self.shared)
        while True:
            try:
                whole = await self._join_model(open_round.round + 1, after)
                return whole, Judgement() if beside else await self._evaluate(open_round, whole)
            except EdgeLost as error:
                if clock() > until_s:
                    raise
                open_round.was_disturbed = True
                self.shared.log.event("evaluation made again", "warning", round=open_round.round + 1, why=str(error))
                await self.shared.edge.close()
                await backoff.wait()
                with suppress(EdgeLost):
                    await self.shared.edge.begin_run(self.shared.kit)

    def _save_checkpoint(
        self, after: UnitState, counted: dict[int, str], once_written: Callable[[], None], untested: RoundRecord | None
    ) -> None:
        """Write the checkpoint, and only then take the new position. once_written: what to do once its content is on the disk, and before it
        counts. untested: the round's record, where its test follows."""
        notes = {"progress": json.dumps(asdict(self.standing)), "config": self.shared.kit.config.model_dump_json()}
        notes["fleet"], notes["counted"] = self.shared.control.to_json(), json.dumps(counted)
        if untested is not None:
            notes[UNTESTED] = record_line(untested)
        self.store.save(self.round + 1, after, notes, once_written)
        self.round, self.state, self.counted = self.round + 1, after, counted

    def _close_round(self, open_round: MainRound, record: RoundRecord, measured: dict[int, dict[str, float]]) -> None:
        self.shared.open_round = None
        for seat, tail in open_round.tails.items():
            if seat in measured:
                self.shared.roster.send(seat, pack_message(RoundOver(open_round.round, open_round.attempt, True, "")))
                head = self.shared.kit.empty(0, tail.cut)
                sent = {"up": tail.up_bytes, "down": tail.down_bytes, "head_down": head.num_bytes}
                sent["head_up"] = self.shared.kit.head_files.num_bytes(head)
                row = open_round.plan.rows[seat]
                self.shared.planner.learn(open_round.round, seat, row, measured[seat], sent)
                for phase in PHASES:
                    self.shared.metrics.phase(phase, measured[seat][phase])
                self.shared.counts.kept(seat, tail.name, measured[seat])
            open_round.spare_tails.give_back(tail.cut, tail.working_copy)
        for name, part in parts_of_round(record).items():
            if part.measured_s is not None:
                self.shared.metrics.part(name, part.measured_s)
        cuts = {seat: open_round.tails[seat].cut for seat in measured}
        if not open_round.was_disturbed:
            self.shared.planner.learn_end(open_round.ending_s, list(cuts.values()))
        rows = {seat: open_round.plan.rows[seat] for seat in measured}
        self.shared.planner.learn_main(open_round.round, rows, {seat: measured[seat]["server"] for seat in measured})
        self.shared.metrics.completed(record.round, record.wall_s)
        self.shared.log.event(
            "round complete", round=record.round, kept=len(record.kept), of=len(record.started), train_loss=_four_digits(record.train_loss),
            test_accuracy=_four_digits(record.test_accuracy), wall_s=round(record.wall_s, 3),
        )  # fmt: skip

    def _measured_phases(self, open_round: MainRound, seat: int) -> dict[str, float]:
        tail = open_round.tails[seat]
        up_share = self.shared.planner.up_share(seat, tail.up_bytes, tail.down_bytes, tail.step)
        return tail.phases(open_round.model_up_s[seat], up_share)

    def _link_bytes(self, open_round: MainRound) -> LinkBytes:
        """Bytes on each link, as a simulation counts them."""
        start, stop = open_round.common
        sums = 2 * (self._sum_bytes(start, stop) if start < stop else 0)
        assert open_round.head_report is not None
        return LinkBytes(
            client_main_up=sum(tail.up_bytes for tail in open_round.tails.values()),
            client_main_down=sum(tail.down_bytes for tail in open_round.tails.values()),
            client_edge_up=open_round.head_report.up_bytes,
            client_edge_down=open_round.head_report.down_bytes,
            edge_main=sums,
        )

    def _sum_bytes(self, start: int, stop: int) -> int:
        units = self.shared.kit.empty(start, stop)
        return 8 * (units.floats.numel() + units.ints.numel() + stop - start)

    async def _join_model(self, round: int, state: UnitState) -> UnitState:
        """The whole model of a round: the units below `state` come from the edge server."""
        if not state.start:
            return state
        kit = self.shared.kit
        lower = await self.shared.edge.give_units(round, kit.empty(0, state.start))
        kit.check_units(lower, "the edge server")
        return join(lower, state)

    async def _evaluate(self, open_round: MainRound, whole: UnitState) -> Judgement:
        """How good the model is on the operator's test samples, or on the clients' own."""
        if self.test is None:
            return await self.evaluate_handler.judgement(open_round, whole)
        return await self.shared.compute.run(partial(self._judge_on_test, whole, self.test, open_round.test_codecs))

    async def test_loss(self, round: int, state: UnitState) -> float:
        """The loss on the operator's test samples of the model that has seen so many rounds. state: the main server's units of it."""
        assert self.test is not None, "on_jump asks for the operator's own test samples"
        whole = await self._join_model(round, state)
        tested = await self.shared.compute.run(partial(self._judge_on_test, whole, self.test))
        assert tested.quality is not None
        return tested.quality.loss

    def _judge_on_test(
        self, whole: UnitState, test: Images, test_codecs: Sequence[CodecAtCut | None] = ()
    ) -> Judgement:
        kit = self.shared.kit
        load_state(whole, kit.model)
        model = kit.model.eval()

        def quality_with(at: CodecAtCut | None) -> Quality | None:
            with suppress(Diverged):
                return evaluate_model(model if at is None else at.applied_to(model), test, kit.num_classes)
            return None

        return judge(test_codecs, quality_with)

    async def finish(self, status: str) -> Summary:
        """Write the last model and the summary, and tell clients if all rounds are done. status: as in the summary."""
        try:
            if status == "finished":
                await self.shared.edge.begin_run(self.shared.kit)
            save_model(self.folder, await self._join_model(self.round, self.state), best=False)
        except EdgeLost as error:
            self.shared.log.event("the last model is not joined: the edge server is away", "warning", why=str(error))
        if status == "finished":
            for seat in list(self.shared.roster.members):
                self.shared.roster.members[seat].is_leaving = True
                self.shared.roster.send(seat, pack_message(Stop("all rounds are done")))
            deadline_s = time.monotonic() + OVER_S
            while self.shared.roster.members and time.monotonic() < deadline_s:
                await asyncio.sleep(0.05)
        return write_end(self.folder, self.shared.kit, status)


def _test_codecs_of(record: RoundRecord, kit: ModelKit) -> list[CodecAtCut | None]:
    """The codecs at the cuts of the clients that began a recorded round."""
    test_codecs = list[CodecAtCut | None]()
    for seat in record.started:
        up = kit.codecs_of(None if record.codecs is None else record.codecs[seat]).up
        coded = up is not None and record.cuts[seat] < kit.num_units
        test_codecs.append(CodecAtCut(record.cuts[seat], up) if up is not None and coded else None)
    return test_codecs


def _four_digits(value: float | None) -> float | None:
    """A number for a log; the record has all its digits."""
    return None if value is None else rounded(value, 4)
