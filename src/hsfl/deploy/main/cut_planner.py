"""Chooses the cuts of each round, with codecs where `link.allowed` has several, from measured speeds: those that clients measure when they join, then
those of their rounds.

New cuts are taken only if they make the modelled round shorter by more than a tenth, so that noise in the measurements moves
no cut. A device whose memory does not hold its cut gets another cut at once.

A row of the cost table is a cut with a codec (`planning.coded_cost`); with one codec for all a row is a cut. At the last cut, where nothing
travels, the row is that of the first codec.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hsfl.codec_table import allowed_links
from hsfl.config import RunConfig
from hsfl.data.passes import samples_of_round, steps_of_round
from hsfl.deploy.logs import Log
from hsfl.deploy.main.learned_speeds import (
    coding_of_client,
    exchange_s,
    learned,
    learned_end,
    learned_main,
    work_of_client,
)
from hsfl.deploy.wire.client_messages import OwnSpeeds, Ready
from hsfl.deploy.wire.link_probe import LinkSpeed
from hsfl.errors import InputError
from hsfl.framework_table import method
from hsfl.models.cost_table import CostTable
from hsfl.network.channel import Measured
from hsfl.network.clock import Timeline
from hsfl.network.devices import Fleet, Servers, max_cuts
from hsfl.network.even_allocation import framework_cuts
from hsfl.network.latency import Rates, UnitWork, client_work, server_work
from hsfl.planning.coded_cost import Coding, cost_of_rows, rows_within_points, work_of_rows
from hsfl.planning.cuts import check_codecs, choose_cuts, choose_one_cut
from hsfl.planning.rounds.participation import CutTask
from hsfl.planning.rounds.round_clock import RoundClock
from hsfl.planning.world import World, count_batches, round_end_of, server_is_queue, tests_per_round

GAIN = 0.9  # new cuts must make the modelled round shorter than this part of the old one
WORTH = 0.01  # of the round's seconds: a client's new cut that saves less is not taken
RATES = ("main_up_bps", "main_down_bps", "edge_up_bps", "edge_down_bps")


@dataclass(frozen=True)
class RoundPlan:
    """The cuts of a round, and how long it should take."""

    cuts: tuple[int, ...]  # [K]
    timeline: Timeline
    allocation_note: dict[str, Any]  # what the allocation says, for the record
    codecs: tuple[str, ...] = ()  # [K] of smashed data and gradients, where clients have different ones
    rows: tuple[int, ...] = ()  # [K] of the cost table: cuts with codecs

    def codec(self, seat: int) -> str | None:
        """The client's codec; None where everybody has that of the settings."""
        return self.codecs[seat] if self.codecs else None

    def weight(self, seat: int) -> float:
        """The client's share of the main server, in proportion: its planned cycles per second, or 1 without a plan."""
        planned = self.allocation_note.get("server_hz")
        return max(float(planned[seat]), 1e-9) if planned is not None else 1.0

    def way_s(self, seat: int, part_left: float) -> float:
        """Planned seconds from a client's next batch to the end of its upload, if the main server served nobody else. part_left: of its
        batches."""
        took_s = {phase: float(seconds[seat]) for phase, seconds in self.timeline.phase_s.items()}
        upload_s, _ = took_s.pop("model_up"), took_s.pop("model_down")
        return part_left * sum(took_s.values()) + upload_s


class CutPlanner:
    """Plans each round of a deployment."""

    def __init__(
        self,
        config: RunConfig,
        cost: CostTable,
        main_flops_per_s: float,
        log: Log,
        main_work: UnitWork | None = None,
        main_coding: Coding | None = None,
    ) -> None:
        network = config.network.model_copy(update={"kind": "measured", "speed_std": 0.0, "history": None})
        self.config, self.cost = config.model_copy(update={"network": network}), cost
        allowed, batch_size = allowed_links(config.link), config.train.batch_size
        self.links, self.codecs = list(allowed.values()), tuple(allowed)
        self.row_cost = cost_of_rows(cost, self.links, batch_size)
        self.usable = rows_within_points(config.link, cost)
        self.main_flops_per_s, self.log = main_flops_per_s, log
        self.main_work = self._with_coding(server_work(cost, main_work), "server", main_coding)
        self.end = round_end_of(network)  # of a round, as far as it is known
        self.measured: dict[int, OwnSpeeds] = {}  # by seat
        self.works: dict[int, UnitWork] = {}  # of the units before each cut with each codec, by seat
        self.samples: dict[int, int] = {}
        self.rows: tuple[int, ...] | None = None  # of the last plan
        self.given_cuts: dict[int, int] = {}  # of the operator, by seat, in the place of planned ones
        check_codecs(self.config, self._world([]))
        if not isinstance(config.fleet.cuts, str):
            self._choose(
                self._world([]), self._samples()
            )  # impossible cuts are an error now, not when clients are there

    @property
    def cuts(self) -> tuple[int, ...] | None:
        """The cuts of the last plan, [K]."""
        return None if self.rows is None else tuple(self.row_cost.cuts_of(self.rows).tolist())

    def _with_coding(self, work: UnitWork, side: str, coding: Coding | None = None) -> UnitWork:
        """Work by cut as work by row. side: client or server. coding: FLOPs for each number, where codecs were timed."""
        rows = work_of_rows(self.cost, self.links, work, side, coding)
        assert rows is not None
        return rows

    def join(self, seat: int, ready: Ready) -> None:
        """Take a client's own measurement. Of a client that joined before, only the memory is taken: the speeds that
        are known may come from measured rounds, which say more."""
        self.samples[seat] = sum(ready.class_counts)
        if seat not in self.measured:
            work = work_of_client(ready.measured, self.cost, self.config.train.batch_size)
            self.works[seat] = self._with_coding(work, "client", coding_of_client(ready.measured))
        known = self.measured.get(seat, ready.measured)
        self.measured[seat] = replace(known, memory_bits=ready.measured.memory_bits)

    def learn(self, round: int, seat: int, row: int, phases: dict[str, float], sent: dict[str, int]) -> None:
        """Learn a client's speed and rates from a measured round (0, 1, ...). row: the client's cut with its codec. phases: seconds by phase.
        sent: bytes of smashed data (`up`), of gradients (`down`) and of the head (`head_up`, `head_down`), as they travelled."""
        train = self.config.train
        trained = samples_of_round(self.samples[seat], train.batch_size, train.local_epochs, round)
        steps = steps_of_round(self.samples[seat], train.batch_size, train.local_epochs)
        sample_flops = float(self.works[seat].both[row])
        self.measured[seat] = learned(self.measured[seat], sample_flops, float(trained), int(steps), phases, sent)

    def learn_main(self, round: int, rows: dict[int, int], served_s: dict[int, float]) -> None:
        """Learn the main server's own speed from a measured round (0, 1, ...). rows, served_s: by seat."""
        train = self.config.train
        trained = [
            (
                rows[seat],
                float(samples_of_round(self.samples[seat], train.batch_size, train.local_epochs, round)),
                seconds,
            )
            for seat, seconds in served_s.items()
        ]
        self.main_flops_per_s = learned_main(self.main_flops_per_s, self.main_work, trained)

    def know_link_of_servers(self, link: LinkSpeed) -> None:
        """Take what the link to the edge server was probed to do."""
        self.end = replace(self.end, swap_bps=min(link.up_bps, link.down_bps), swap_delay_s=link.delay_s)

    def test_beside(self, num_batches: int) -> None:
        """Know that tests of so many batches are made beside the next round."""
        self.end = replace(self.end, test_beside=num_batches)

    def learn_end(self, measured: dict[str, float], cuts: Sequence[int]) -> None:
        """Learn the end of a round from one. measured: seconds of each part. cuts: of the clients that were summed."""
        bits = float(self.cost.swapped_bits[max(cuts)] - self.cost.swapped_bits[min(cuts)])
        if self.end.test_beside:
            measured = {
                part: part_s for part, part_s in measured.items() if part != "test"
            }  # of a test, what it had to wait for
        self.end = learned_end(self.end, measured, bits, len(cuts))

    def learn_test(self, test_s: float) -> None:
        """Learn how long the main server worked for a test beside a round."""
        self.end = learned_end(self.end, {"test": test_s}, 0.0, 0)

    def plan(self, round: int, chosen: tuple[int, ...], names: list[str]) -> RoundPlan:
        """The cuts of a round. chosen: seats of the clients that take part. names: of all seats."""
        world, samples = self._world(names), self._samples()
        self.rows = None if self.rows is None else self._with_given(self.rows, world)
        best = self._plan_with(world, samples, self._choose(world, samples), round, chosen)
        if self.rows is not None and best.rows != self.rows:
            before = self._plan_with(world, samples, self._rows_that_fit(best.rows, world), round, chosen)
            if best.timeline.round_s < GAIN * before.timeline.round_s:
                best = self._fewest_changes(world, samples, best, before, round, chosen)
                self._log_new_cuts(best, before, chosen, names)
            else:
                best = before
        self.rows = best.rows
        return best

    def _rows_that_fit(self, best: tuple[int, ...], world: World) -> tuple[int, ...]:
        """The rows of before, if every device can hold its cut. A device that cannot has taken a seat that was planned
        for another device, or has less memory than before. It gets its row in `best`, whatever the round gains."""
        assert self.rows is not None
        cuts, best_cuts = (self.row_cost.cuts_of(rows) for rows in (self.rows, best))
        holds = world.fleet.max_cut >= cuts
        if holds.all() or best == self.rows:
            return self.rows
        for seat in np.flatnonzero(~holds).tolist():
            self.log.event(
                "client gets another cut, as its memory does not hold the one before", client=world.fleet.name(seat),
                cut=int(best_cuts[seat]), before=int(cuts[seat]),
            )  # fmt: skip
        if not method(self.config.framework).own_cuts:
            return best
        return tuple(old if fits else new for old, new, fits in zip(self.rows, best, holds))

    def _fewest_changes(
        self, world: World, samples: np.ndarray, best: RoundPlan, before: RoundPlan, round: int, chosen: tuple[int, ...]
    ) -> RoundPlan:
        """The plan in which clients get a new row only where it shortens the round; all others keep their rows."""
        for seat in range(len(best.rows)):
            if best.rows[seat] != before.rows[seat]:
                rows = (*best.rows[:seat], before.rows[seat], *best.rows[seat + 1 :])
                other = self._plan_with(world, samples, rows, round, chosen)
                best = other if other.timeline.round_s <= best.timeline.round_s * (1 + WORTH) else best
        return best

    def _choose(self, world: World, samples: np.ndarray) -> tuple[int, ...]:
        config, task = self.config, CutTask(self.config, world, count_batches(self.config, samples))
        rows, _ = choose_cuts(task)
        if not method(config.framework).own_cuts:
            rows = (choose_one_cut(task, rows),) * len(rows)
        planned = framework_cuts(config.framework, np.array(rows), self.row_cost.num_units).tolist()
        return self._with_given(tuple(planned), world)

    def _with_given(self, rows: tuple[int, ...], world: World) -> tuple[int, ...]:
        """The rows with the cuts that the operator gives, as far as the devices' memories hold them; codecs stay."""
        cuts = self.row_cost.cuts_of(rows)
        for seat, cut in self.given_cuts.items():
            cuts[seat] = min(cut, int(world.fleet.max_cut[seat]))
        codecs = [self.codecs[block] for block in self.row_cost.blocks_of(rows)]
        return tuple(world.rows_of(cuts.tolist(), codecs).tolist())

    def _plan_with(
        self, world: World, samples: np.ndarray, rows: tuple[int, ...], round: int, chosen: tuple[int, ...]
    ) -> RoundPlan:
        cuts, codecs = tuple(world.cost.cuts_of(rows).tolist()), world.codecs_of(np.array(rows))
        rows = tuple(world.rows_of(cuts, codecs).tolist())
        timeline, allocation_note = RoundClock(self.config, world, cuts, samples, codecs=codecs).round(round, chosen)
        return RoundPlan(cuts, timeline, allocation_note, codecs, rows)

    def _world(self, names: list[str]) -> World:
        """The fleet of all K seats. A seat that nobody has taken yet gets the median of the taken seats."""
        count = self.config.fleet.num_clients
        table = {name: self._rates_of_seats(name) for name in ("flops_per_s", *RATES)}
        memory = [self.measured[k].memory_bits if k in self.measured else None for k in range(count)]
        deepest = [self.deepest(bits) for bits in memory]
        usual = self._with_coding(client_work(self.cost, None), "client")
        fleet = Fleet(
            cpu_hz=table["flops_per_s"], flops_per_cycle=np.ones(count), max_power_w=np.full(count, np.nan),
            max_cut=np.array(deepest), names=np.array([*names, *(f"seat {k}" for k in range(len(names), count))]),
            work=UnitWork.of_clients([self.works.get(k, usual) for k in range(count)]),
        )  # fmt: skip
        network = self.config.network
        service = network.service if server_is_queue(network) else None
        servers = Servers(
            main_hz=self.main_flops_per_s,
            service=service,
            work=self.main_work,
            end=self.end,
            test=self.end.beside(tests_per_round(self.config.train)),
        )
        delay_s = self._rates_of_seats("delay_s") if self.measured else None
        links = Measured(Rates(**{name: table[name] for name in RATES}, delay_s=delay_s))
        own_codecs = len(self.codecs) > 1 or self.config.link.codecs is not None
        return World(
            self.row_cost,
            fleet,
            servers,
            links,
            None,
            self.config.fleet_seed,
            0.0,
            self.codecs,
            own_codecs,
            self.usable,
        )

    def up_share(self, seat: int, up_bytes: int, down_bytes: int, num_steps: int) -> float:
        """The share of the upload in the seconds that an exchange spends on the link. A client times both ways
        together; the seconds are divided as what is known of its link divides them."""
        up_s, down_s = exchange_s(self.measured[seat], up_bytes, down_bytes, num_steps)
        return up_s / (up_s + down_s) if up_s + down_s > 0 else 0.0

    def deepest(self, memory_bits: float | None) -> int:
        """The deepest cut that fits into a client's memory (None: unknown, every cut fits); an error if none fits."""
        if memory_bits is None or self.cost.memory_bits is None:
            return self.cost.num_units
        return int(max_cuts(self.cost, np.array([memory_bits]), "training", self.config.fleet.min_cut)[0])

    def check_memory(self, name: str, seat: int, memory_bits: float | None) -> None:
        """Refuse a device that cannot hold the cut that the operator gave it; the others go on without it."""
        deepest, fleet = self.deepest(memory_bits), self.config.fleet
        given = [] if isinstance(fleet.cuts, str) else [fleet.cuts if isinstance(fleet.cuts, int) else fleet.cuts[seat]]
        given += [fleet.one_cut] if isinstance(fleet.one_cut, int) else []
        if max(given, default=0) > deepest:
            raise InputError(
                f"{name}'s memory holds cuts up to {deepest}, and the run gives it {max(given)}; ask the operator for a smaller cut"
            )

    def _rates_of_seats(self, name: str) -> np.ndarray:
        known = {seat: float(getattr(speeds, name)) for seat, speeds in self.measured.items()}
        usual = float(np.median(list(known.values()))) if known else 1e9
        return np.array([known.get(seat, usual) for seat in range(self.config.fleet.num_clients)])

    def _samples(self) -> np.ndarray:
        usual = int(np.median(list(self.samples.values()))) if self.samples else 1
        return np.array([self.samples.get(seat, usual) for seat in range(self.config.fleet.num_clients)], float)

    def _log_new_cuts(self, plan: RoundPlan, before: RoundPlan, chosen: tuple[int, ...], names: list[str]) -> None:
        for seat in chosen:
            old, new = before.cuts[seat], plan.cuts[seat]
            if before.rows[seat] == plan.rows[seat]:
                continue
            codecs: dict[str, Any] = {}
            if plan.codecs:
                codecs = {"codec": plan.codec(seat), "codec_before": before.codec(seat)}
            self.log.event(
                "client gets another cut, as measured rounds say", client=names[seat], cut=new, before=old,
                modelled_round_s=plan.timeline.round_s, before_round_s=before.timeline.round_s, **codecs,
            )  # fmt: skip
