"""Recorded histories of speeds, gains and rates: played back in a run, or taken as the planner's samples.

Legend: R recorded rounds, K clients, I subchannels. A history is a `RoundDraw` with a leading axis R, so it *is* the
samples of the paper's SAA; `round_of_history` gives a run one of its rounds. On disk it is CSV, one row per round and client,

    round,client,cpu_hz,main_gain_0,...,edge_gain_0,...
    round,client,cpu_hz,main_up_bps,main_down_bps,edge_up_bps,edge_down_bps

or npz with arrays `cpu_hz` [R, K] and `main_gain`, `edge_gain` [R, K, I] or the four rates [R, K] (never pickled).
Where speeds were not recorded, write each client's usual speed.
"""

import csv
from pathlib import Path

import numpy as np

from hsfl.errors import InputError
from hsfl.files import check_ordinary, check_unpacked, write_atomic
from hsfl.network.channel import RATE_NAMES, RoundDraw
from hsfl.network.latency import Rates

Array = np.ndarray
GAIN_NAMES = ("main_gain", "edge_gain")
KEYS = ("round", "client")
MOST_BYTES = 2**30  # of the arrays in an npz file
MOST_GAPS = 1000  # rounds times clients of a CSV, for each row that the CSV has


def round_of_history(history: RoundDraw, round: int) -> RoundDraw:
    """What round `round` (from 0) of a run finds. A run longer than its history starts it again from the front."""
    return history.sample(round % len(history.cpu_hz))


def write_history(history: RoundDraw, path: str | Path) -> None:
    """Write a history to a .csv or .npz file, whole or not at all. Floats are written exactly."""
    path = Path(path)
    if history.cpu_hz.ndim != 2:
        raise InputError(f"a history has rounds and clients; cpu_hz is {history.cpu_hz.shape}")
    form = _write_npz if _kind(path) == "npz" else _write_csv
    write_atomic(path, lambda scratch: form(_arrays(history), scratch))


def read_history(path: str | Path, num_clients: int | None = None) -> RoundDraw:
    """Read a history from a .csv or .npz file. Errors name the file, the client and the value."""
    path = Path(path)
    check_ordinary(path)
    arrays = _read_npz(path) if _kind(path) == "npz" else _read_csv(path)
    try:
        rates = Rates(*(arrays[name] for name in RATE_NAMES)) if RATE_NAMES[0] in arrays else None
        history = RoundDraw(arrays["cpu_hz"], arrays.get("main_gain"), arrays.get("edge_gain"), rates)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if history.cpu_hz.ndim != 2 or not history.cpu_hz.size:
        raise InputError(f"{path}: cpu_hz is {history.cpu_hz.shape}; it must be rounds by clients")
    if num_clients not in (None, history.num_clients):
        raise InputError(f"{path} records {history.num_clients} clients but the fleet has {num_clients}")
    return history


def _kind(path: Path) -> str:
    if path.suffix not in (".csv", ".npz"):
        raise InputError(f"a history is .csv or .npz; got {path}")
    return path.suffix[1:]


def _arrays(history: RoundDraw) -> dict[str, Array]:
    arrays = {"cpu_hz": history.cpu_hz}
    for name in GAIN_NAMES:
        if getattr(history, name) is not None:
            arrays[name] = getattr(history, name)
    if history.rates is not None:
        arrays |= {name: getattr(history.rates, name) for name in RATE_NAMES}
    return arrays


def _write_npz(arrays: dict[str, Array], path: Path) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def _write_csv(arrays: dict[str, Array], path: Path) -> None:
    header: list[str] = []
    for name, array in arrays.items():
        header += [name] if array.ndim == 2 else [f"{name}_{i}" for i in range(array.shape[2])]
    num_rounds, num_clients = arrays["cpu_hz"].shape
    wide = np.concatenate([array.reshape(num_rounds, num_clients, -1) for array in arrays.values()], axis=2)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*KEYS, *header])
        for r in range(num_rounds):
            for k in range(num_clients):
                writer.writerow([r, k, *(repr(value) for value in wide[r, k].tolist())])


def _read_npz(path: Path) -> dict[str, Array]:
    try:
        check_unpacked(path, MOST_BYTES)
        with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
            arrays = {name: file[name].astype(float, casting="same_kind") for name in file.files}
    except InputError:
        raise
    except Exception as error:  # each layer of a damaged npz file (zip, deflate, NumPy's header) has its own
        raise InputError(f"cannot read the history {path}: {' '.join(str(error).split()) or 'it is damaged'}") from None
    _check_names(path, set(arrays))
    return arrays


def _check_names(path: Path, names: set[str]) -> None:
    for wanted in ({"cpu_hz", *GAIN_NAMES}, {"cpu_hz", *RATE_NAMES}):
        if names == wanted:
            return
    raise InputError(
        f"{path} holds {', '.join(sorted(names))}; a history has cpu_hz and either {', '.join(GAIN_NAMES)} "
        f"or {', '.join(RATE_NAMES)}"
    )


def _read_csv(path: Path) -> dict[str, Array]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets begin with a byte order mark
            header, *rows = list(csv.reader(file)) or [[]]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"cannot read the history {path}: {error}") from None
    while rows and not any(rows[-1]):  # blank lines at the end
        rows.pop()
    if tuple(header[:2]) != KEYS:
        raise InputError(f"{path} begins with {','.join(header[:2])!r}; the first columns are round,client")
    columns = _columns(path, header)
    table = _table(path, header, rows)
    num_rounds, num_clients = _check_complete(path, table[:, :2])
    table = table[np.lexsort((table[:, 1], table[:, 0]))].reshape(num_rounds, num_clients, -1)
    return {name: table[..., at[0]] if name not in GAIN_NAMES else table[..., at] for name, at in columns.items()}


def _columns(path: Path, header: list[str]) -> dict[str, list[int]]:
    """Where each quantity stands; gains are numbered from 0 in order."""
    columns: dict[str, list[int]] = {}
    for place, title in enumerate(header[2:], start=2):
        name, _, number = title.rpartition("_")
        if name in GAIN_NAMES:
            if number != str(len(columns.get(name, []))):
                raise InputError(f"{path}: column {title!r} is out of order; number {name} from 0")
            columns.setdefault(name, []).append(place)
        else:
            columns[title] = [place]
    _check_names(path, set(columns))
    if len(columns.get("main_gain", [])) != len(columns.get("edge_gain", [])):
        raise InputError(f"{path} has more gains to one server than to the other; give both for every subchannel")
    return columns


def _table(path: Path, header: list[str], rows: list[list[str]]) -> Array:
    table = np.empty((len(rows), len(header)))
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise InputError(f"{path} line {number} has {len(row)} values but the header has {len(header)}")
        for place, value in enumerate(row):
            try:
                table[number - 2, place] = float(value)
            except ValueError:
                raise InputError(f"{path} line {number}: {header[place]} is {value!r}, not a number") from None
    if not rows:
        raise InputError(f"{path} has a header but no rows; one row per round and client")
    return table


def _check_complete(path: Path, keys: Array) -> tuple[int, int]:
    """How many rounds and clients there are, with every client once in every round."""
    bad = ~((keys >= 0) & (keys < len(keys)) & (keys == np.floor(keys)))
    if bad.any():
        row, axis = np.unravel_index(bad.argmax(), bad.shape)
        raise InputError(
            f"{path} line {row + 2}: {KEYS[axis]} is {keys[row, axis]:g}; rounds and clients are numbered from 0 "
            "without gaps"
        )
    rounds_and_clients = keys.astype(int)
    num_rounds, num_clients = rounds_and_clients.max(axis=0) + 1
    if num_rounds * num_clients > MOST_GAPS * len(
        keys
    ):  # an absurd number is an error before a table of that size is made
        raise InputError(
            f"{path} has {len(keys)} rows for {num_rounds} rounds of {num_clients} clients; every client must be once in every "
            "round, numbered from 0"
        )
    count = np.zeros((num_rounds, num_clients), int)
    np.add.at(count, (rounds_and_clients[:, 0], rounds_and_clients[:, 1]), 1)
    if (count != 1).any():
        r, k = np.unravel_index(np.argmax(count != 1), count.shape)
        raise InputError(
            f"{path}: client {k} stands {count[r, k]} times in round {r}; it must be once in every round, numbered from 0"
        )
    return count.shape[0], count.shape[1]
