"""Your own arrays in an .npz file: train_x, train_y, test_x, test_y, or x and y (or train_x and train_y
alone) of which a part is held out; y as `train.task` has it.

`classes` (names) and `clients` (who holds each training sample) may stand beside them. Pickled objects are never read.
"""

from pathlib import Path

import numpy as np

from hsfl.data.arrays import Side, checked_arrays
from hsfl.data.readers.reader_base import Arrays, Request, reading
from hsfl.errors import InputError
from hsfl.files import check_unpacked

LAYOUTS = (  # names of samples and labels, for training and for testing
    ("train_x", "train_y", "test_x", "test_y"),
    ("x_train", "y_train", "x_test", "y_test"),
    ("x", "y"),
    ("train_x", "train_y"),
    ("x_train", "y_train"),
)
MOST_BYTES = 16 * 2**30  # of the arrays in the file
EXTRA = ("classes", "clients")
WAY_OUT = "write it with np.savez(PATH, train_x=..., train_y=..., test_x=..., test_y=...), plain arrays without objects"


def read_npz(request: Request) -> Arrays:
    """The arrays of an .npz file, everything checked; where it has no test samples, a part is held out."""
    path = request.file(request.path)
    stored = _stored(path)
    layout = next((names for names in LAYOUTS if set(names) <= stored.keys()), None)
    if layout is None or (unknown := stored.keys() - {*layout, *EXTRA}):
        array_names = layout or LAYOUTS[0]
        problem = f"holds {', '.join(sorted(stored)) or 'nothing'}" if layout is None else f"holds {min(unknown)}, too"
        raise InputError(
            f"{path} {problem}; name the arrays {', '.join(array_names)}, or x and y; with classes and clients, if you like"
        )
    train = Side(layout[0], stored[layout[0]], layout[1], stored[layout[1]])
    test = Side(layout[2], stored[layout[2]], layout[3], stored[layout[3]]) if len(layout) == 4 else None
    files, listed = request.files, request.clients()
    if test is not None and files.test_fraction:
        raise InputError(f"data.test_fraction is {files.test_fraction} but {path} has {test.x_name}; leave it out")
    if listed is not None and "clients" in stored:
        raise InputError(f"data.client_file is {files.client_file!r} but {path} has clients; leave one of them out")
    return checked_arrays(
        f"{path}: ",
        train,
        test,
        test_fraction=files.test_fraction,
        classes=_class_names(path, stored),
        clients=stored.get("clients", listed),
        normalise=files.normalise,
        task=files.task,
    )


def _stored(path: Path) -> dict[str, np.ndarray]:
    with reading(path, WAY_OUT):
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise InputError(f"{path} holds one array without a name; {WAY_OUT}")
        check_unpacked(path, MOST_BYTES)
        with file:
            return {name: file[name] for name in file.files}


def _class_names(path: Path, stored: dict[str, np.ndarray]) -> list[str] | None:
    if "classes" not in stored:
        return None
    names = stored["classes"]
    if names.ndim != 1 or names.dtype.kind not in "Uiu":
        raise InputError(f"{path}: classes is of {names.dtype} {names.shape}; give a list of names")
    return [str(name) for name in names.tolist()]
