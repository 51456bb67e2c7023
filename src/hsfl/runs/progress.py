"""What a person sees while a run is under way: bars on a terminal, plain lines elsewhere. A run tells an `Observer` what happens."""

import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichBars
from rich.text import Text

from hsfl.config import RunConfig
from hsfl.formats import duration, percent, seconds, significant, without_numbers
from hsfl.framework_table import method
from hsfl.runs.cuts_and_allocation import allocation_words, cuts_words, how_cuts_were_chosen
from hsfl.runs.run_folder.records import RoundRecord


class Observer:
    """Is told what happens, for a progress display; this observer shows nothing.

    cuts: [K]. kept: the clients that train in the round. num_samples: how many samples the round, or the batch, has.
    """

    def run_starts(self, config: RunConfig, cuts: Sequence[int], rounds_done: int) -> None: ...
    def round_starts(self, round_number: int, kept: Sequence[int], num_samples: int) -> None: ...
    def batch_starts(self, client: int, num_samples: int) -> None: ...
    def evaluation_starts(self) -> None: ...
    def warns(self, message: str) -> None: ...
    def warns_of_run(self, message: str) -> None:
        """A warning of this run alone, which is not said for the others of many."""
        self.warns(message)

    def round_ends(self, record: RoundRecord) -> None: ...
    def run_ends(self) -> None: ...


MANY_CUTS = 200  # above, a heading counts cuts instead of listing them


def _round_line(record: RoundRecord, rounds: int) -> str:
    """A round in one line."""
    columns = [f"round {record.round:>{len(str(rounds))}}/{rounds}"]
    columns.append("nobody trained" if record.train_loss is None else f"loss {record.train_loss:.4f}")
    if record.test_accuracy is not None:
        columns.append(f"accuracy {percent(record.test_accuracy):>6}")
    for name, value in list(record.metrics.items())[:1]:  # the one that is shown first
        columns.append(f"{name.replace('_', ' ')} {significant(value, 4)}")
    if record.num_kept < record.num_clients:
        columns.append(f"{record.num_kept} of {record.num_clients} clients")
    columns += [f"{seconds(record.sim_time_s)} simulated", f"{record.num_samples / record.wall_s:,.0f} samples/s"]
    return "  ".join(columns)


def _heading(config: RunConfig, cuts: Sequence[int], name: str | None = None) -> str:
    """What is trained, in one line, with which cuts and which allocation. cuts: [K]. name: shown instead of the framework's name."""
    cut_list = " ".join(map(str, cuts))
    if len(cuts) > MANY_CUTS:
        cut_list = ", ".join(f"{cut} ({number:,})" for cut, number in sorted(Counter(cuts).items()))
    cuts_text = cuts_words(config, cuts)
    if cuts_text.startswith("cuts"):
        cuts_text = f"cuts {cut_list} ({how_cuts_were_chosen(config)})"
    if method(config.framework).pools_data:
        cuts_text = "data pooled on the server"
    task = f"{config.model.name} on {config.data.name}, {len(cuts)} clients"
    return f"{name or config.framework}: {task}, {cuts_text}, {allocation_words(config)}"


class Warnings(Observer):
    """Shows nothing but warnings, and each of them once.

    shown_warnings: the warnings of the other runs, where there are many. A warning that differs from these in numbers alone is
    not repeated: the steps of two frameworks differ, and the advice is the same. run_name: which of many runs this is.
    """

    def __init__(
        self,
        console: Console,
        name: str | None = None,
        shown_warnings: set[str] | None = None,
        run_name: str | None = None,
    ) -> None:
        self.console, self.name, self.run_name = console, name, run_name
        self.one_of_many = shown_warnings is not None
        self.shown_warnings = set[str]() if shown_warnings is None else shown_warnings

    def warns(self, message: str) -> None:
        warning = without_numbers(message) if self.one_of_many else message
        if warning in self.shown_warnings:
            return
        self.shown_warnings.add(warning)
        self._print(message)

    def warns_of_run(self, message: str) -> None:
        self._print(f"{self.run_name}: {message}" if self.run_name else message)

    def _print(self, message: str) -> None:
        self.console.print(Text.assemble(("warning:", "yellow"), " ", message), soft_wrap=True)


class Lines(Warnings):
    """Prints a line for each round, with the time left; for files and pipes."""

    def run_starts(self, config: RunConfig, cuts: Sequence[int], rounds_done: int) -> None:
        self.rounds, self.first, self.started = config.train.rounds, rounds_done, time.monotonic()
        self.budget_s = config.train.budget_s
        self.console.print(_heading(config, cuts, self.name), soft_wrap=True)

    def round_ends(self, record: RoundRecord) -> None:
        a_round_s = (time.monotonic() - self.started) / (record.round - self.first)
        rounds_left = self.rounds - record.round
        if self.budget_s is not None:
            rounds_left = min(rounds_left, int((self.budget_s - record.sim_time_s) / max(record.round_s, 1e-12)))
        left = f"  {duration(a_round_s * rounds_left)} left" if rounds_left > 0 else ""
        self.console.print(_round_line(record, self.rounds) + left, soft_wrap=True)


class Bars(Lines):
    """Shows two bars, one for the rounds and one for the samples of the round, and a line for each round that ended."""

    def run_starts(self, config: RunConfig, cuts: Sequence[int], rounds_done: int) -> None:
        super().run_starts(config, cuts, rounds_done)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
        self.bars = RichBars(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self.console, transient=True)
        self.run_bar = self.bars.add_task("run  ", total=float(config.train.rounds), completed=rounds_done, note="")
        self.round_bar = self.bars.add_task("round", total=None, note="")
        self.bars.start()

    def round_starts(self, round_number: int, kept: Sequence[int], num_samples: int) -> None:
        self.kept, self.num_samples, self.done, self.round_started = list(kept), num_samples, 0, time.monotonic()
        self.bars.reset(self.round_bar, total=max(num_samples, 1), note="")
        self.bars.update(self.run_bar, completed=round_number - 1, note=f"round {round_number}/{self.rounds}")

    def batch_starts(self, client: int, num_samples: int) -> None:
        rate = self.done / max(time.monotonic() - self.round_started, 1e-9)
        note = f"client {client} ({len(self.kept)} in the round), {rate:,.0f} samples/s"
        self.bars.update(self.round_bar, completed=self.done, note=note)
        fraction = min(self.done / max(self.num_samples, 1), 1)
        self.bars.update(self.run_bar, completed=int(self.bars.tasks[0].completed) + fraction * 0.999)
        self.done += num_samples

    def evaluation_starts(self) -> None:
        self.bars.update(self.round_bar, completed=self.num_samples, note="testing")

    def round_ends(self, record: RoundRecord) -> None:
        self.bars.console.print(_round_line(record, self.rounds), soft_wrap=True)
        self.bars.update(self.run_bar, completed=record.round)

    def run_ends(self) -> None:
        self.bars.stop()


def observer(
    console: Console,
    quiet: bool = False,
    name: str | None = None,
    shown_warnings: set[str] | None = None,
    run_name: str | None = None,
) -> Observer:
    """Bars on a terminal, lines elsewhere, and with `quiet` warnings alone. shown_warnings: those of other runs, not to be repeated."""
    kind = Warnings if quiet else Bars if console.is_terminal else Lines
    return kind(console, name, shown_warnings, run_name)
