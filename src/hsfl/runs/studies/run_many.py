"""Many runs, one after another or side by side, and how far they are: "run 4 of 15, about 6 min left"."""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from hsfl.config import RunConfig
from hsfl.data.registry import Dataset
from hsfl.errors import InputError
from hsfl.formats import duration, without_numbers
from hsfl.models.units import SplitModel
from hsfl.runs.progress import Observer, Warnings, observer
from hsfl.runs.run_folder.records import CutsRecord
from hsfl.runs.studies.process_pool import in_processes


@dataclass(frozen=True)
class Piece:
    """One run of many."""

    name: str  # as people read it: "fl, seed 1"
    kind: str  # pieces of one kind take about equally long
    config: RunConfig
    path: Path
    cuts: CutsRecord | None = None  # the cuts that were chosen for the run before, and are not searched again


Work = Callable[[Piece, Observer], None]


@dataclass(frozen=True)
class Pace:
    """How long pieces took, and so how long the rest will take."""

    seconds: dict[str, list[float]] = field(default_factory=dict)  # by kind

    def add(self, kind: str, seconds: float) -> None:
        self.seconds.setdefault(kind, []).append(seconds)

    def left_s(self, kinds: Iterable[str], jobs: int = 1) -> float | None:
        """The seconds that pieces of these kinds will take, with so many jobs side by side; None before the first piece
        has ended. A kind that has not been seen is expected to take as long as the mean."""
        every = [took_s for seconds in self.seconds.values() for took_s in seconds]
        if not every:
            return None
        means = {kind: sum(seconds) / len(seconds) for kind, seconds in self.seconds.items()}
        rest = [means.get(kind, sum(every) / len(every)) for kind in kinds]
        return max(sum(rest) / jobs, max(rest, default=0.0))


class Show:
    """Is told how far many runs are; this class shows nothing."""

    def begins(self, num_done: int, total: int, jobs: int) -> None: ...

    def starts(self, piece: Piece, place: int, total: int, left_s: float | None) -> Observer:
        return Observer()

    def ends(self, piece: Piece, place: int, total: int, left_s: float | None) -> None: ...

    def warns(self, piece: Piece, message: str, of_run: bool = False) -> None:
        """of_run: whether the warning is of this run alone; else it is said once for all runs."""

    def says(self, message: str) -> None: ...


@dataclass(frozen=True)
class ManyRuns:
    """How the runs of a comparison or of a sweep are made."""

    num_seeds: int = 1  # the base's seed and those that follow it
    jobs: int = 1  # how many runs are made side by side, each in a process of its own
    show: Show = field(default_factory=Show)  # is told how far they are
    dataset: Dataset | None = None  # given from Python instead of the one that the config names, for all runs
    model: SplitModel | None = None  # likewise


ONE_SEED = ManyRuns()


class ConsoleShow(Show):
    """Shows people how far the runs are: in the heading of each run, or, where runs are side by side, by a line as each
    ends."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.shown_warnings: set[str] = set()  # warnings: what holds for all runs is said once

    def begins(self, num_done: int, total: int, jobs: int) -> None:
        if num_done:
            self.says(f"{num_done} of {total} runs are there already")
        if jobs > 1 and num_done < total:
            self.says(f"{total - num_done} runs in {jobs} processes, one thread each; a line as each one ends")

    def starts(self, piece: Piece, place: int, total: int, left_s: float | None) -> Observer:
        heading = f"{_place(place, total, left_s)}: {piece.name}"
        return observer(self.console, self.quiet, heading, self.shown_warnings, piece.name)

    def ends(self, piece: Piece, place: int, total: int, left_s: float | None) -> None:
        self.says(f"{_place(place, total, left_s)}: {piece.name} has ended")

    def warns(self, piece: Piece, message: str, of_run: bool = False) -> None:
        if of_run or (warning := without_numbers(message)) not in self.shown_warnings:
            self.shown_warnings |= set() if of_run else {warning}
            Warnings(self.console).warns(f"{piece.name}: {message}")

    def says(self, message: str) -> None:
        if not self.quiet:
            self.console.print(message, soft_wrap=True)


def _place(place: int, total: int, left_s: float | None) -> str:
    return f"run {place} of {total}" + (f", about {duration(max(left_s, 1.0))} left" if left_s is not None else "")


def run_all(
    pieces: Sequence[Piece], work: Work, is_done: Callable[[Piece], bool], jobs: int = 1, show: Show | None = None
) -> None:
    """Do the work of every piece that is not done. With several jobs, each piece has a process of its own with one
    thread.

    An interruption or an error in one piece stops all; what runs have reached is in their folders.
    """
    show = show or Show()
    waiting = [piece for piece in pieces if not is_done(piece)]
    jobs = min(jobs, len(waiting))
    pace, total, place = Pace(), len(pieces), len(pieces) - len(waiting)
    show.begins(place, total, jobs)
    if jobs > 1:
        _side_by_side(waiting, work, jobs, show, pace, total)
        return
    for number, piece in enumerate(waiting):
        observer_of_run = show.starts(
            piece, place + number + 1, total, pace.left_s(later.kind for later in waiting[number:])
        )
        began = time.monotonic()
        work(piece, observer_of_run)
        pace.add(piece.kind, time.monotonic() - began)


def _side_by_side(waiting: list[Piece], work: Work, jobs: int, show: Show, pace: Pace, total: int) -> None:
    left = {piece.path: piece for piece in waiting}
    try:
        for path, seconds, warnings in in_processes(partial(_in_own_process, work=work), waiting, jobs):
            piece = left.pop(path)
            for message, of_run in warnings:
                show.warns(piece, message, of_run)
            pace.add(piece.kind, seconds)
            left_s = pace.left_s((other.kind for other in left.values()), jobs) if left else None
            show.ends(piece, total - len(left), total, left_s)
    except BrokenProcessPool:
        raise InputError(
            "a process of --jobs died, perhaps for want of memory; the same command goes on where it was: give fewer --jobs"
        ) from None


class WarningList(Observer):
    """Keeps the warnings of a run that shows nothing itself, and whether each is of this run alone."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bool]] = []

    def warns(self, message: str) -> None:
        self.messages.append((message, False))

    def warns_of_run(self, message: str) -> None:
        self.messages.append((message, True))


def _in_own_process(piece: Piece, work: Work) -> tuple[Path, float, list[tuple[str, bool]]]:
    """Do a piece in a process of its own, with one thread, so that processes do not wait for each other's threads.

    Returns the folder of the run, the seconds that it took, and its warnings.
    """
    torch.set_num_threads(1)
    listener, began = WarningList(), time.monotonic()
    work(piece, listener)
    return piece.path, time.monotonic() - began, listener.messages
