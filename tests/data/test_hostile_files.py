"""Files that would hang, or fill the memory: refused in one line."""

import gzip
import os
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hsfl.data.readers.cifar10 import read_batch
from hsfl.data.readers.idx import read_idx
from hsfl.data.registry import load_dataset
from hsfl.errors import InputError
from hsfl.network import history
from tests.data.data_files import write_picture
from tests.naming import raises


def test_a_named_pipe_among_images_is_left_aside(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for index in range(5):
            write_picture(tmp_path / name / f"{index}.png", 10 * index)
    os.mkfifo(tmp_path / "cat" / "x.png")
    began = time.monotonic()
    assert len(load_dataset(f"folder:{tmp_path}").train_y) == 8
    assert time.monotonic() - began < 5


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """Ten gigabytes of zeros in ten megabytes; here only their beginning, for the header tells."""
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 100_000, 320, 320) + bytes(10**6)))
    with pytest.raises(InputError, match=r"claims 10\.2 GB"):
        read_idx(path, "replace it")


@pytest.mark.parametrize("program", [b"\x80\x04}r\x00\x00\x00\x08.", b"\x80\x02}p99999999\n."])
def test_an_absurd_index_of_a_pickle_takes_no_memory(tmp_path: Path, program: bytes) -> None:
    """An index of 2^27: the C version of the reader takes 2 GiB for it."""
    (tmp_path / "batch").write_bytes(program)
    tracemalloc.start()
    with raises(InputError, "batch", "read"):
        read_batch(tmp_path / "batch")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10**7


def test_a_packed_history_that_is_too_large_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_BYTES", 2**20)
    path = tmp_path / "h.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed,
        packed.open("cpu_hz.npy", "w", force_zip64=True) as part,
    ):
        for _ in range(11):
            part.write(bytes(2**20))
    with raises(InputError, "0.0115 GB", "0.00105"):
        history.read_history(path)


@pytest.mark.parametrize(
    "values", [np.float64(3), np.ones(3), np.ones((2, 3, 4)), np.array("a"), np.ones((4, 3), complex)]
)
def test_arrays_of_other_shapes_and_kinds_are_named(tmp_path: Path, values: np.ndarray) -> None:
    path, gain = tmp_path / "h.npz", np.ones((4, 3, 5))
    for name in ("cpu_hz", "main_gain"):
        np.savez(path, **({"cpu_hz": np.ones((4, 3)), "main_gain": gain, "edge_gain": gain} | {name: values}))
        with pytest.raises(InputError, match=r"h\.npz") as caught:
            history.read_history(path, 3)
        assert "\n" not in str(caught.value)
