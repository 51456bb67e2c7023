"""What the main server keeps: its position between two rounds, the checkpoint, the run folder, and the joined model."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial

from hsfl.deploy.main.edge_link import EdgeLost
from hsfl.deploy.main.handlers import Desk
from hsfl.deploy.main.main_round import MainRound
from hsfl.deploy.main.remote_evaluation import Evaluating
from hsfl.deploy.metrics import PHASES
from hsfl.deploy.run_record import measured_round_record, save_model, write_end
from hsfl.deploy.settings import TAU_S
from hsfl.deploy.unit_store import Store
from hsfl.deploy.wire.client_messages import RoundOver, Stop
from hsfl.deploy.wire.messages import pack_message
from hsfl.deploy.wire.transport import Backoff
from hsfl.files import checked_record
from hsfl.formats import rounded
from hsfl.frameworks.framework import join
from hsfl.models.state import UnitState, load_state
from hsfl.runs.folder import RunFolder
from hsfl.runs.records import RoundRecord, RunStanding, advance
from hsfl.runs.write_records import Summary
from hsfl.training.batches import Images
from hsfl.training.evaluation import Quality, evaluate_model
from hsfl.training.link import LinkBytes

OVER_S = 5.0  # for clients to go when there are no more rounds


class Keeping:
    """The main server's position and files. test: the operator's test samples; None where the clients' samples judge
    the model, or none do. classes: the names of the classes."""

    def __init__(self, desk: Desk, folder: RunFolder, test: Images | None, classes: Sequence[str]) -> None:
        self.desk, self.folder, self.test, self.classes = desk, folder, test, tuple(classes)
        self.store = Store(folder.path / "checkpoint")
        self.evaluating = Evaluating(desk)
        self.round, self.state, self.standing = 0, desk.kit.initial, RunStanding(0, None, None)

    def restore(self) -> None:
        """Go on from the last completed round, if there is one."""
        rounds = self.store.rounds()
        if not rounds:
            return
        self.state, notes = self.store.load(rounds[-1], self.desk.kit)
        self.standing = checked_record(notes["progress"], RunStanding, "the checkpoint's progress")
        self.round = self.standing.rounds_done
        self.folder.keep_rounds(self.round)
        self.desk.log.event("goes on from the last completed round", round=self.round)

    async def write(self, open_round: MainRound, after: UnitState, began_s: float) -> None:
        """Write a round into the run folder. The round is complete when the checkpoint is written. after: the new
        state; began_s: when the round began, by `perf_counter`."""
        kept, config = open_round.agreed, self.desk.kit.config
        last = open_round.round + 1 == config.train.rounds
        whole = quality = None
        if self.desk.settings.evaluate != "none" and (last or (open_round.round + 1) % config.train.eval_every == 0):
            whole, quality = await self._evaluated(open_round, after)
        measured = {seat: self._measured(open_round, seat) for seat in kept}
        before_s = self._modelled_s()
        record = measured_round_record(
            self.desk.kit, open_round.round, before_s, open_round.plan, open_round.tails, kept, measured, self._sent(open_round), quality,
            time.perf_counter() - began_s,
        )  # fmt: skip
        self.standing = advance(self.standing, record)
        self.folder.append(record)
        if whole is not None and self.standing.best_round == record.round:
            save_model(self.folder, whole, best=True)
        self._keep(after)
        self._end_well(open_round, record, measured)

    async def _evaluated(self, open_round: MainRound, after: UnitState) -> tuple[UnitState, Quality | None]:
        """The joined model, and how good it is. The edge server has the round on its disk already, so an edge server
        that is away is waited for, up to tau from now. Only then is EdgeLost raised and the round made again."""
        clock, backoff = asyncio.get_running_loop().time, Backoff()
        until_s = clock() + (self.desk.kit.config.train.tau_s or TAU_S)
        while True:
            try:
                whole = await self._whole(open_round.round + 1, after)
                return whole, await self._judge(open_round, whole)
            except EdgeLost as error:
                if clock() > until_s:
                    raise
                self.desk.log.event("evaluation made again", "warning", round=open_round.round + 1, why=str(error))
                await self.desk.edge.lose()
                await backoff.wait()
                with suppress(EdgeLost):
                    await self.desk.edge.begin(self.desk.kit)

    def _modelled_s(self) -> float:
        records = self.folder.rounds()
        return records[-1].sim_time_s if records else 0.0

    def _keep(self, after: UnitState) -> None:
        """Write the checkpoint, and only then take the new position."""
        notes = {"progress": json.dumps(asdict(self.standing)), "config": self.desk.kit.config.model_dump_json()}
        self.store.save(self.round + 1, after, notes)
        self.round, self.state = self.round + 1, after

    def _end_well(self, open_round: MainRound, record: RoundRecord, measured: dict[int, dict[str, float]]) -> None:
        self.desk.open_round = None
        for seat, tail in open_round.tails.items():
            if seat in measured:
                self.desk.roster.send(seat, pack_message(RoundOver(open_round.round, open_round.attempt, True, "")))
                head = self.desk.kit.empty(0, tail.cut).num_bytes
                self.desk.planner.learn(
                    open_round.round,
                    seat,
                    tail.cut,
                    measured[seat],
                    {"up": tail.up_bytes, "down": tail.down_bytes, "head": head},
                )
                for phase in PHASES:
                    self.desk.metrics.phase(phase, measured[seat][phase])
            open_round.parts.give_back(tail.cut, tail.part)
        self.desk.metrics.completed(record.round, record.wall_s)
        self.desk.log.event(
            "round complete", round=record.round, kept=len(record.kept), of=len(record.started), train_loss=_short(record.train_loss),
            test_accuracy=_short(record.test_accuracy), wall_s=round(record.wall_s, 3),
        )  # fmt: skip

    def _measured(self, open_round: MainRound, seat: int) -> dict[str, float]:
        tail = open_round.tails[seat]
        up_share = self.desk.planner.up_share(seat, tail.up_bytes, tail.down_bytes)
        return tail.phases(open_round.model_up_s[seat], up_share)

    def _sent(self, open_round: MainRound) -> LinkBytes:
        """Bytes on each link, as a simulation counts them."""
        start, stop = open_round.common
        sums = 2 * (self._sum_bytes(start, stop) if start < stop else 0)
        assert open_round.have is not None
        return LinkBytes(
            client_main_up=sum(tail.up_bytes for tail in open_round.tails.values()),
            client_main_down=sum(tail.down_bytes for tail in open_round.tails.values()),
            client_edge_up=open_round.have.up_bytes,
            client_edge_down=open_round.have.down_bytes,
            edge_main=sums,
        )

    def _sum_bytes(self, start: int, stop: int) -> int:
        units = self.desk.kit.empty(start, stop)
        return 8 * (units.floats.numel() + units.ints.numel() + stop - start)

    async def _whole(self, round: int, state: UnitState) -> UnitState:
        """The whole model of a round: the units below `state` come from the edge server."""
        if not state.start:
            return state
        return join(await self.desk.edge.give_units(round, self.desk.kit.empty(0, state.start)), state)

    async def _judge(self, open_round: MainRound, whole: UnitState) -> Quality | None:
        """How good the model is on the operator's test samples, or on the clients' own."""
        if self.test is None:
            return await self.evaluating.quality(open_round, whole)
        return await self.desk.compute.run(partial(self._assess, whole, self.test))

    def _assess(self, whole: UnitState, test: Images) -> Quality:
        load_state(whole, self.desk.kit.model)
        return evaluate_model(self.desk.kit.model.eval(), test, self.desk.kit.num_classes)

    async def finish(self, status: str) -> Summary:
        """Write the last model and the summary, and tell clients if all rounds are done. status: as in the summary."""
        try:
            if status == "finished":
                await self.desk.edge.begin(self.desk.kit)
            save_model(self.folder, await self._whole(self.round, self.state), best=False)
        except EdgeLost as error:
            self.desk.log.event("the last model is not joined: the edge server is away", "warning", why=str(error))
        if status == "finished":
            for seat in list(self.desk.roster.members):
                self.desk.roster.members[seat].goes = True
                self.desk.roster.send(seat, pack_message(Stop("all rounds are done")))
            deadline_s = time.monotonic() + OVER_S
            while self.desk.roster.members and time.monotonic() < deadline_s:
                await asyncio.sleep(0.05)
        return write_end(self.folder, self.desk.kit, status)


def _short(value: float | None) -> float | None:
    """A number for a log; the record has all its digits."""
    return None if value is None else rounded(value, 4)
