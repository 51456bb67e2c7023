"""Your own table in a CSV file: a row for each sample, a header, one column with the class (or columns with labels or numbers, as
`train.task` has it), numbers in the others.

`data.target_column` names the class's column, `data.client_column` one that says which client holds the row (it is never a
feature), `data.feature_columns` the others, if not all. Columns are divided by commas, semicolons or tabs.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hsfl.data.arrays import Side, checked_arrays
from hsfl.data.readers.reader_base import Arrays, Request, reading
from hsfl.errors import InputError, known_name
from hsfl.tasks import find_task

DELIMITERS = (",", ";", "\t")
WAY_OUT = "save it as text in UTF-8, a row for each sample under a header"


@dataclass(frozen=True)
class Table:
    """The rows of a CSV file as text."""

    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]  # of the file, where each row ends

    def column(self, setting: str, name: str) -> list[str]:
        place = self.header.index(known_name(f"{self.path}: data.{setting}", name, self.header))
        return [row[place].strip() for row in self.rows]

    def numbers(self, names: list[str], setting: str = "feature_columns") -> np.ndarray:
        """float64 [rows, columns]; a cell that is no number is told with its line."""
        values = np.empty((len(self.rows), len(names)))
        for column, name in enumerate(names):
            cells = self.column(setting, name)
            try:
                values[:, column] = np.array(cells, dtype=float)
                bad = ~np.isfinite(values[:, column])
            except ValueError:
                bad = np.array([not _is_number(cell) for cell in cells])
            if bad.any():
                row = int(bad.argmax())
                raise InputError(
                    f"{self.path}, line {self.lines[row]}: {name} is {cells[row][:40]!r}; put a number there, or choose "
                    f"the columns of numbers with data.{setting}"
                )
        return values


def read_csv(request: Request) -> Arrays:
    """Classes are the target's values; the test rows are those of `data.test_file`, else a part that is held out."""
    files = request.files
    table = _table(request.file(request.path))
    if files.target_column is None:
        raise InputError(
            f"{table.path} needs data.target_column, the column of the class; its columns are {', '.join(table.header)}"
        )
    targets = [files.target_column] if isinstance(files.target_column, str) else list(files.target_column)
    by_class = files.targets == "classes"
    if files.targets in ("tokens", "pixels") or (by_class and len(targets) != 1):
        elsewhere = {"tokens": "tokens are read from npz:PATH and text:PATH", "pixels": "pixels are read from npz:PATH"}
        way_out = elsewhere.get(files.targets, "name one column")
        raise InputError(
            f"data.target_column is {', '.join(targets)} but the task is {find_task(files.task).name}; {way_out}"
        )
    special = [*targets, *([] if files.client_column is None else [files.client_column])]
    if len(set(special)) < len(special):
        twice = next(name for name in special if special.count(name) > 1)
        raise InputError(f"data.client_column and data.target_column are both {twice!r}; name different columns")
    features = list(files.feature_columns or (name for name in table.header if name not in special))
    if both := [name for name in special if name in features] or [n for n in features if features.count(n) > 1]:
        raise InputError(f"data.feature_columns holds {both[0]!r}, which has another use; leave it out")
    if not features:
        raise InputError(f"{table.path} has no columns but {', '.join(special)}; add the numbers to learn from")
    listed = request.clients()
    if files.client_column is not None:
        if listed is not None:
            raise InputError("data.client_column and data.client_file both say who holds a sample; leave one out")
        listed = table.column("client_column", files.client_column)
    train, test = _side(table, features, targets, by_class), None
    if files.test_file is not None:
        if files.test_fraction:
            raise InputError(f"data.test_fraction is {files.test_fraction} beside data.test_file; leave one out")
        test = _side(_table(request.file(files.test_file)), features, targets, by_class)
    classes = _in_order(train.y) if by_class else targets
    return checked_arrays(
        f"{table.path}: ",
        train,
        test,
        test_fraction=files.test_fraction,
        classes=classes if len(classes) > 1 or not by_class else None,  # one class alone is told by name
        clients=listed,
        normalise=files.normalise,
        task=files.task,
    )


def _side(table: Table, features: list[str], targets: list[str], by_class: bool) -> Side:
    target = targets[0]
    if not by_class:
        return Side(
            "the features", table.numbers(features), ", ".join(targets), table.numbers(targets, "target_column")
        )
    labels = table.column("target_column", target)
    if "" in labels:
        line_number = table.lines[labels.index("")]
        raise InputError(f"{table.path}, line {line_number}: {target} is empty; name the class, or leave the row out")
    return Side("the features", table.numbers(features), target, labels)


def _in_order(names: list[str]) -> list[str]:
    """Each class once: whole numbers by size, else as words are sorted."""
    distinct = set(names)
    whole = all(name.isascii() and name.removeprefix("-").isdigit() for name in distinct)
    return sorted(distinct, key=lambda name: (int(name) if whole else 0, name))


def _table(path: Path) -> Table:
    with reading(path, WAY_OUT), path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        rows = csv.reader(file, delimiter=max(DELIMITERS, key=first.count), strict=True)
        header = [name.strip() for name in next(rows, [])]
        numbered = [(rows.line_num, row) for row in rows if row]
    if not header or not numbered:
        raise InputError(f"{path} holds no rows under a header; {WAY_OUT}")
    if twice := [name for name in header if header.count(name) > 1 or not name]:
        raise InputError(f"{path}: a column is called {twice[0]!r} twice, or has no name; name each once")
    for line_number, row in numbered:
        if len(row) != len(header):
            raise InputError(
                f"{path}, line {line_number} has {len(row)} cells but the header {len(header)}; correct the line"
            )
    return Table(path, header, [row for _, row in numbered], [line_number for line_number, _ in numbered])


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False
