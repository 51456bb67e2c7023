"""The CIFAR-10 reader reads arrays and executes nothing."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from hsfl.data.readers.cifar10 import read_batch
from hsfl.data.registry import load_dataset
from hsfl.errors import InputError
from tests.data.data_files import cifar_batch, write_cifar
from tests.naming import raises


@pytest.mark.parametrize("protocol", [3, 4])
def test_a_batch_comes_back(protocol: int, tmp_path: Path) -> None:
    batch = cifar_batch(7)
    (tmp_path / "batch").write_bytes(pickle.dumps(batch, protocol=protocol))
    images, labels = read_batch(tmp_path / "batch")
    assert np.array_equal(images.reshape(7, 3072), batch[b"data"])
    assert labels.tolist() == batch[b"labels"]


def test_both_layouts(tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar-10-batches-py")
    above, within = load_dataset("cifar10", tmp_path), load_dataset("cifar10", tmp_path / "cifar-10-batches-py")
    assert np.array_equal(above.train_x, within.train_x)
    assert (len(above.train_y), len(above.test_y)) == (50, 10)


class Evil:
    """Pickles as a call of any function."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


def global_call(module: str, name: str, *arguments: bytes) -> bytes:
    """A hand-written pickle (protocol 0): module.name(*arguments)."""
    return b"c" + f"{module}\n{name}\n".encode() + b"(" + b"".join(arguments) + b"tR."


def test_no_pickle_can_run_anything(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    path = tmp_path / "batch"
    programs = [
        pickle.dumps(Evil(__import__("os").system, f"touch {witness}")),
        pickle.dumps(Evil(exec, f"open({str(witness)!r}, 'w')")),
        pickle.dumps(Evil(Path.touch, witness)),
        pickle.dumps(cifar_batch(data=Evil(eval, f"open({str(witness)!r}, 'w')")), protocol=2),
        global_call("builtins", "getattr", b"S'x'\n", b"S'__class__'\n"),
        global_call("numpy", "load", b"S'x'\n"),
        global_call("numpy", "fromfile", b"S'/etc/passwd'\n"),
        global_call("numpy.core.multiarray", "scalar", b"S'x'\n"),
        global_call("numpy", "dtype.__class__", b"S'x'\n"),
        global_call("hsfl.data.readers.cifar10", "Array"),
    ]
    for program in programs:
        path.write_bytes(program)
        with raises(InputError, "asks for", "no image file needs") as caught:
            read_batch(path)
        assert "\n" not in str(caught.value)
        assert not witness.exists()


@pytest.mark.parametrize("program", [b"\x82\x01.", b"Pid\n."], ids=["extension code", "persistent id"])
def test_no_other_way_to_a_name(program: bytes, tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(program)
    with raises(InputError, "batch", "read"):
        read_batch(tmp_path / "batch")


def test_objects_cannot_be_smuggled_in_arrays(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    for data in (np.array([[1, "x"]], object), np.zeros((10, 3072)), np.zeros((10, 3072), np.int8)):
        path.write_bytes(pickle.dumps(cifar_batch(data=data), protocol=4))
        with raises(InputError, "instead of bytes"):
            read_batch(path)


def test_stand_ins_cannot_be_rewritten(tmp_path: Path) -> None:
    """BUILD may set attributes of what it is given: on our classes it may not."""
    path = tmp_path / "batch"
    for name in ("ndarray", "dtype"):
        path.write_bytes(b"cnumpy\n" + name.encode() + b"\n}S'evil'\nI1\nsb.")
        with raises(InputError, "batch", "read"):
            read_batch(path)


DAMAGE = {
    "empty": (b"", "cannot be read"),
    "truncated": (pickle.dumps(cifar_batch(), protocol=4)[:-400], "cannot be read"),
    "text": (b"hello world", "cannot be read"),
    "memory bomb": (b"\x80\x04r\xff\xff\xff\xff.", "cannot be read"),
    "a list": (pickle.dumps([1, 2]), "a list", "instead of a dict"),
    "no labels": (pickle.dumps({b"data": 1}), "cannot be read", "KeyError: 'labels'"),
    "no array": (pickle.dumps(cifar_batch(data=[1, 2])), "no rows", "3072 bytes"),
    "narrow rows": (pickle.dumps(cifar_batch(data=np.zeros((10, 9), np.uint8)), protocol=4), "no rows", "3072 bytes"),
    "float labels": (pickle.dumps(cifar_batch(labels=[0.5] * 10), protocol=4), "small numbers", "'labels'"),
    "huge labels": (pickle.dumps(cifar_batch(labels=[10**30] * 10), protocol=4), "small numbers", "'labels'"),
    "label 10": (pickle.dumps(cifar_batch(labels=[10] * 10), protocol=4), "label 10", "0..9"),
    "fewer labels": (pickle.dumps(cifar_batch(labels=[1] * 9), protocol=4), "9 labels for 10 images"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_in_one_line(kind: str, tmp_path: Path) -> None:
    content, *parts = DAMAGE[kind]
    write_cifar(tmp_path)
    (tmp_path / "data_batch_3").write_bytes(content)
    with raises(InputError, "data_batch_3", *parts) as caught:
        load_dataset("cifar10", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_batch(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    (tmp_path / "test_batch").unlink()
    with raises(InputError, "test_batch", "hsfl data fetch cifar10"):
        load_dataset("cifar10", tmp_path)
