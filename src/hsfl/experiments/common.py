"""What the experiments share: scales, folders that an experiment claims and goes on with, claims of the paper beside findings."""

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsfl import plugins
from hsfl.config import flatten
from hsfl.errors import InputError
from hsfl.files import read_record, write_atomic, write_json
from hsfl.report.curves import Estimate
from hsfl.report.tables import SummaryTable, ValueCell, scaled_estimate
from hsfl.runs.run_folder.environment import environment
from hsfl.runs.run_folder.folder import holds_something

SCALES = ("smoke", "quick", "full")
UNREADABLE = (  # what a damaged CSV raises
    *(OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError),
    csv.Error,
)
AGAIN = "delete it and run the same command again"
TREND_HEADER = ["the paper", "here", "agrees"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Trend:
    """A claim of the paper beside what we find."""

    paper: str
    ours: str
    holds: bool | None  # None: the paper gives nothing to hold


@dataclass(frozen=True)
class Outcome:
    """What an experiment leaves behind."""

    name: str
    markdown: Path
    files: list[Path]
    trends: list[Trend]
    tables: list[SummaryTable]  # the tables of means in the Markdown

    @property
    def claims(self) -> SummaryTable:
        """The paper's claims beside our findings."""
        rows = [[trend.paper, trend.ours, {True: "yes", False: "no", None: "-"}[trend.holds]] for trend in self.trends]
        return SummaryTable(f"{self.name}-claims", f"{self.name}: the paper and here", [*TREND_HEADER], rows)


def claim(folder: Path, settings: dict[str, Any]) -> None:
    """Mark the folder as one with these settings; a folder that holds results of other settings is refused."""
    path = folder / "settings.json"
    plain_settings = json.loads(json.dumps(settings))
    if path.exists():
        before, after = flatten(_stored(path)), flatten(plain_settings)
        different = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        if different:
            name = "scale" if "scale" in different else different[0]
            before_text, after_text = (json.dumps(of.get(name))[:40] for of in (before, after))
            raise InputError(
                f"{folder} holds results with another {name} ({before_text}, now {after_text}); choose another --out"
            )
    elif holds_something(folder):
        raise InputError(f"{folder} already holds something else; choose another folder (--out)")
    else:
        write_json(path, plain_settings)


def claim_plugins(folder: Path, columns: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Refuse to mix columns that were made with different versions of a plugin's file. `columns` says which plugins each uses."""
    path = folder / "plugins.json"
    stored = _stored(path) if path.exists() else {}
    current = {
        name: {f"{kind} {of}": plugin.sha256 for (kind, of), plugin in plugins.plugins_of_names(used).items()}
        for name, used in columns.items()
    }
    for name, hashes in current.items():
        if name in stored and stored[name] != hashes:
            raise InputError(
                f"{folder} holds {name} of another plugin file; put that file back, or choose another --out"
            )
    merged = stored | {name: hashes for name, hashes in current.items() if hashes}
    if merged != stored:
        write_json(path, merged)


def _stored(path: Path) -> dict[str, Any]:
    return dict(read_record(path, dict[str, Any], "choose another --out"))


def finite(text: str) -> float:
    """The number of a cell; ValueError where it is none, or not finite."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value


def write_text(path: Path, text: str) -> Path:
    """Write a text file, whole or not at all; returns its path."""
    write_atomic(path, lambda scratch: scratch.write_text(text, "utf-8"))
    return path


def trend_table(trends: Sequence[Trend], undecided: bool = False) -> str:
    """A table of the paper's claims beside our findings. With `undecided`, a claim without an answer was tested and not decided."""
    agrees = {True: "yes", False: "**no**", None: "undecided" if undecided else "-"}
    rows = [[trend.paper, trend.ours, agrees[trend.holds]] for trend in trends]
    lines = [TREND_HEADER, [":--", ":--", ":--"], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def machine() -> str:
    """The machine and the versions, in one line."""
    about = environment()
    versions = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    return f"Machine: {about['processor']}, {about['num_cpus']} core{'' if about['num_cpus'] == 1 else 's'}; Python {about['python']}, {versions}."


def say_mean(value: Estimate, scale: float = 1.0, digits: int = 1) -> ValueCell:
    """`97.8 ± 5.2`; the mean alone where there is no interval."""
    text = "-"
    if value.mean is not None:
        half = "" if value.high is None else f" ± {(value.high - value.mean) * scale:.{digits}f}"
        text = f"{value.mean * scale:.{digits}f}{half}"
    return ValueCell(text, scaled_estimate(value, scale))
