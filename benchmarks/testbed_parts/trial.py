"""One fleet and model, from measuring to comparing: measure every node under its quota, write the fleet file, plan, deploy, run the cut sets
in turn within one deployment, and compare.

Starting a deployment costs some 4 CPU seconds a process, so the sets share one: an order of the operator (`hsfl admin set cut.NAME=...`) gives
the next round other cuts. A set has its rounds in blocks that are spread over the run. When cuts change, units move between the servers before the
round, so the first round of a block is made and left out, as the first round of any run is.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hsfl.api.plan_calls import PlanResult, plan
from hsfl.codec_table import NONE
from hsfl.deploy.admin.operator_events import OperatorEvent, append_event, time_now
from hsfl.deploy.demo import toml_lines
from hsfl.deploy.trust.authority import Authority
from hsfl.errors import InputError
from hsfl.report.prediction_page import write_check
from hsfl.runs.prediction_check import RoundSpan
from hsfl.runs.prediction_ranking import PlanCheck, check_plans
from hsfl.runs.run_folder.folder import RunFolder, record_line
from hsfl.runs.run_folder.records import RoundRecord
from testbed_parts.fleets import Cuts, Fleet, as_json, cut_sets, schedule
from testbed_parts.machine import PORTS, Machine
from testbed_parts.results import RESULT, keep_check

START_S = 300.0  # for processes to start, and for all nodes to measure themselves
ROUND_S = 300.0  # a round that takes longer ends the trial
LOOK_S = 0.05
MANY_ROUNDS = 100_000  # the deployment is told when to end
RUN_TOML = "run.toml"  # what is trained; the first file of a trial
FLEET_FILE = "fleet.json"
RUN_FILES = ("config.json", "clients.json", "environment.json", "task.json")


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    data: str = "mnist"
    test_samples: int = 100
    measure_s: float = 20.0  # of training, on each node
    passes: int = 2  # blocks of each set
    rounds: int = 4  # of a block; the first is left out
    slowdown: bool = False  # devices sleep in proportion instead of having a quota
    only: tuple[str, ...] = ()  # names of sets, by default all
    codec: str = NONE  # of smashed data and gradients, up/down where they differ


class Trial:
    """A fleet that trains a model, in a folder."""

    def __init__(self, fleet: Fleet, model: str, folder: Path, effort: Effort, say: Callable[[str], None]) -> None:
        self.fleet, self.model, self.folder, self.effort, self.say = fleet, model, folder, effort, say
        self.names = [client.name for client in fleet.clients]

    def run(self) -> PlanCheck:
        self._make_folder()
        work = self.fleet.work[self.model]
        self.say(
            f"{self.fleet.name}, {self.model}: {work.batches} batches of {work.batch_size} for each of {len(self.names)} devices, codec {self.effort.codec}"
        )
        with Machine(self.fleet.nodes(self.effort.slowdown)) as machine:
            self._certify()
            servers = self._start_servers(machine)
            self._measure(machine)
            sets = self._plan()
            order = schedule(list(sets), self.effort.passes, self.effort.rounds, self.fleet.seed)
            self._deploy(machine, servers, [cuts for _, cuts in order])
        runs = self._split_run(order, sets)
        return self._compare(sets, runs)

    def _make_folder(self) -> None:
        """The trial's empty folder; one that broke off begins anew."""
        if (self.folder / RUN_TOML).is_file() and not (self.folder / RESULT).exists():
            shutil.rmtree(self.folder)
        if self.folder.exists():
            raise InputError(f"{self.folder} is there already; choose another --out")
        self.folder.mkdir(parents=True)
        (self.folder / RUN_TOML).write_text(toml_lines(self.settings))

    @property
    def settings(self) -> dict[str, Any]:
        """What is trained."""
        work = self.fleet.work[self.model]
        up, _, down = self.effort.codec.partition("/")
        return {
            "framework": "hsfl",
            "seed": self.fleet.seed,
            "model": {"name": self.model},
            "data": {
                "name": self.effort.data,
                "limit": work.batch_size * work.batches * len(self.names),
                "limit_test": self.effort.test_samples,
            },
            "network": {"kind": "measured"},
            "link": {"up": up, "down": down or up},
            "train": {"rounds": MANY_ROUNDS, "batch_size": work.batch_size, "lr": 1e-4, "tau_s": ROUND_S},
        }

    # --- measuring

    def _certify(self) -> None:
        authority = Authority.create(self.folder / "certs")
        for name in self.names:
            authority.add(name)

    def _measure(self, machine: Machine) -> None:
        """All nodes at once, while both servers run and wait. They share one machine, where each is slower beside the others, as in a
        round; one after another they would take minutes."""
        self.say("  measures all nodes and their links")
        certs, words = (
            self.folder / "certs",
            ["measure", str(self.folder / RUN_TOML), "--seconds", str(self.effort.measure_s)],
        )
        links = {name: ["--main", machine.address("main", name), "--name", name] for name in self.names}
        links["main"] = ["--server", "--edge", machine.address("edge", "main")]
        processes = {}
        for name, link in links.items():
            options = [*link, "-o", str(self._measured(name))]
            options += ["--certs", str(certs / name)] if len(link) > 1 else []
            log = self.folder / f"measure-{name}.log"
            processes[f"measure-{name}"] = machine.start(name, [*words, *options], log)
        self._wait_for(processes)

    def _measured(self, node: str) -> Path:
        return self.folder / f"measured-{node}.json"

    def _wait_for(self, processes: Mapping[str, "subprocess.Popen[bytes]"]) -> None:
        until_s = time.monotonic() + START_S
        for name, process in processes.items():
            try:
                failed = process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                failed = True
            if failed:
                raise InputError(f"{name} did not end well; see {self.folder / f'{name}.log'}")

    # --- planning

    def _plan(self) -> dict[Cuts, list[str]]:
        """Write the fleet file, and plan.json for every cut set. From here on the predictions are fixed."""
        self.say("  plans")
        num_units = self._write_fleet_file()
        tried: dict[Cuts, float] = {}

        def predicted_s(cuts: Cuts) -> float:
            if cuts not in tried:
                tried[cuts] = self._planned(list(cuts)).round_s
            return tried[cuts]

        planned = tuple(self._planned("planned").cuts)
        sets = cut_sets(planned, self.fleet.limits(num_units), num_units, predicted_s, self.fleet.seed)
        if self.effort.only:
            sets = {cuts: names for cuts, names in sets.items() if set(names) & {"planned", *self.effort.only}}
        for cuts, names in sets.items():
            round_s = self._planned(list(cuts), self._plan_folder(names)).round_s
            self.say(f"    {'+'.join(names):24} {' '.join(map(str, cuts)):16} {round_s:7.2f} s predicted")
        return sets

    def _write_fleet_file(self) -> int:
        """fleet.json, with the deepest cut that each device is said to hold in the place of the machine's memory. Returns the number of
        the model's units."""
        devices = [json.loads(self._measured(name).read_text())["device"][0] for name in self.names]
        num_units = len(devices[0]["profile"]["forward_ms"])
        for device, limit in zip(devices, self.fleet.limits(num_units)):
            device.pop("memory", None)
            device["max_cut"] = limit
        main = json.loads(self._measured("main").read_text())
        (self.folder / FLEET_FILE).write_text(as_json({"device": devices} | main))
        return num_units

    def _planned(self, cuts: str | list[int], out: Path | None = None) -> PlanResult:
        return plan(self.settings | {"fleet": {"file": str(self.folder / FLEET_FILE), "cuts": cuts}}, out=out)

    def _plan_folder(self, names: Sequence[str]) -> Path:
        return self.folder / "plans" / "+".join(names)

    # --- running

    def _start_servers(self, machine: Machine) -> dict[str, "subprocess.Popen[bytes]"]:
        certs, edge = self.folder / "certs", f"{machine.addresses['edge']}:{PORTS['edge']}"
        count = len(self.names)
        trees: dict[str, dict[str, Any]] = {
            "edge": {"listen": edge, "out": "edge", "certs": str(certs / "edge"), "threads": 1},
            "main": {
                "listen": f"{machine.addresses['main']}:{PORTS['main']}", "edge": edge, "out": "run", "threads": 1,
                "certs": str(certs / "main"), "clients": self.names, "min_clients": count, "first_clients": count, "bench_after": 0,
                "run": self.settings | {"fleet": {"num_clients": count, "cuts": 1}},
            },
        }  # fmt: skip
        servers = {name: self._start(machine, name, ["serve", name], tree) for name, tree in trees.items()}
        for name in servers:
            self._wait_for_event(servers, START_S, name, '"event": "listens"')
        return servers

    def _start(
        self, machine: Machine, name: str, words: Sequence[str], tree: Mapping[str, Any]
    ) -> "subprocess.Popen[bytes]":
        (self.folder / f"{name}.toml").write_text(toml_lines(dict(tree)))
        words = [*words, str(self.folder / f"{name}.toml"), "--json-log"]
        return machine.start(name, words, self.folder / f"{name}.log")

    def _deploy(
        self, machine: Machine, servers: Mapping[str, "subprocess.Popen[bytes]"], rounds: Sequence[Cuts]
    ) -> None:
        """Run the rounds, each with its cuts."""
        self.say(f"  runs {len(rounds)} rounds")
        self._order(rounds[0])
        processes = dict(servers)
        for number, name in enumerate(self.names):
            tree = {
                "name": name,
                "main": machine.address("main", name),
                "edge": machine.address("edge", name),
                "certs": str(self.folder / "certs" / name),
                "threads": 1,
                "as_client": number,
                "measure_s": 0.2,
                "data": {"name": self.effort.data},
            }
            processes[name] = self._start(machine, name, ["client"], tree)
        for begun in range(1, len(rounds) + 1):
            most_s = START_S if begun == 1 else ROUND_S
            self._wait_for_event(processes, most_s, "main", '"event": "round begins"', f'"round": {begun},')
            if begun == len(rounds):
                append_event(self.folder / "run", OperatorEvent(time_now(), "drain"))
            elif rounds[begun] != rounds[begun - 1]:
                self._order(rounds[begun])
        self._wait_for_end(processes["main"])

    def _order(self, cuts: Cuts) -> None:
        """What `hsfl admin main.toml set cut.NAME=CUT ...` writes; as a process of its own it would take CPU seconds of the round."""
        values = {f"cut.{name}": float(cut) for name, cut in zip(self.names, cuts)}
        append_event(self.folder / "run", OperatorEvent(time_now(), "set", values=values))

    def _wait_for_event(
        self, processes: Mapping[str, "subprocess.Popen[bytes]"], most_s: float, server: str, *wanted: str
    ) -> None:
        """Wait until a line of a server's log has these parts."""
        until_s, log = time.monotonic() + most_s, self.folder / f"{server}.log"
        while not any(all(part in row for part in wanted) for row in log.read_text().splitlines()):
            ended = [name for name, process in processes.items() if process.poll() is not None]
            if ended or time.monotonic() > until_s:
                who, why = (ended[0], f"{ended[0]} ended") if ended else (server, "nothing happened")
                raise InputError(
                    f"no line with {' and '.join(wanted)} in {log}: {why}; see {self.folder / f'{who}.log'}"
                )
            time.sleep(LOOK_S)

    def _wait_for_end(self, main: "subprocess.Popen[bytes]") -> None:
        try:
            main.wait(ROUND_S)
        except subprocess.TimeoutExpired:
            raise InputError(f"the main server did not end; see {self.folder / 'main.log'}") from None

    # --- comparing

    def _split_run(self, order: Sequence[tuple[int, Cuts]], sets: Mapping[Cuts, list[str]]) -> list[Path]:
        """A folder as of a run for each block of rounds, so that blocks of a set are repeats. A round whose order came too late has other
        cuts than it should; it is told, and left out with its block."""
        run = RunFolder(self.folder / "run")
        blocks: dict[int, list[RoundRecord]] = {}
        spoilt = set[int]()
        for record, (block, cuts) in zip(run.rounds(), order):
            blocks.setdefault(block, []).append(record)
            if tuple(record.cuts) != cuts:
                self.say(f"  round {record.round} had cuts {record.cuts} instead of {list(cuts)}")
                spoilt.add(block)
        folders = []
        for block, records in blocks.items():
            if block in spoilt:
                continue
            folder = self.folder / "blocks" / f"{block + 1}-{'+'.join(sets[tuple(records[0].cuts)])}"
            folder.mkdir(parents=True)
            for name in RUN_FILES:
                if (run.path / name).exists():
                    shutil.copy(run.path / name, folder / name)
            lines = [record_line(replace(record, round=number)) for number, record in enumerate(records, 1)]
            (folder / "rounds.jsonl").write_text("".join(lines))
            folders.append(folder)
        return folders

    def _compare(self, sets: Mapping[Cuts, list[str]], runs: Sequence[Path]) -> PlanCheck:
        plans = [self._plan_folder(names) for names in sets.values()]
        plans.sort(key=lambda folder: "planned" not in folder.name.split("+"))
        check = check_plans(plans, runs, RoundSpan())
        write_check(check, self.folder / "check")
        keep_check(self.folder, self.fleet, self.model, self.effort.codec, self.effort.slowdown, check)
        return check
