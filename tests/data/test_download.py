"""Downloads from a server on this machine: checked, whole or not at all, and only when needed."""

import hashlib
import io
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from hsfl.data.download import SOURCES, fetch
from hsfl.data.registry import load_dataset
from hsfl.errors import InputError
from tests.data.data_files import cifar_batch, write_mnist
from tests.data.web_server import WebServer
from tests.naming import raises

CIFAR_FILES = [*SOURCES["cifar10"].files]


def files_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def small_mnist(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> WebServer:
    """A server with small files, and a table with their sums."""
    write_mnist(server.folder)
    sums = {file: sha256((server.folder / file).read_bytes()) for file in SOURCES["mnist"].files}
    monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], files=sums))
    return server


def test_what_is_fetched_can_be_loaded_and_is_not_fetched_again(small_mnist: WebServer, tmp_path: Path) -> None:
    folder = fetch("mnist", tmp_path / "data", small_mnist.url)
    assert folder == tmp_path / "data" / "MNIST" / "raw"
    assert files_below(tmp_path / "data") == sorted(SOURCES["mnist"].files)
    assert len(load_dataset("mnist", tmp_path / "data").train_y) == 40
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in folder.iterdir())
    asked = len(small_mnist.asked)
    assert asked == 4
    assert fetch("mnist", tmp_path / "data", small_mnist.url) == folder
    assert len(small_mnist.asked) == asked


def test_only_what_is_missing_or_broken_is_fetched(small_mnist: WebServer, tmp_path: Path) -> None:
    folder = fetch("mnist", tmp_path / "data", small_mnist.url)
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"broken")
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    small_mnist.asked.clear()
    fetch("mnist", tmp_path / "data", small_mnist.url)
    assert len(small_mnist.asked) == 2
    assert len(load_dataset("mnist", tmp_path / "data").test_y) == 20


def test_a_wrong_sum_leaves_nothing(small_mnist: WebServer, tmp_path: Path) -> None:
    (small_mnist.folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"something else")
    with raises(InputError, "t10k-labels-idx1-ubyte.gz", "known sum") as caught:
        fetch("mnist", tmp_path / "data", small_mnist.url)
    assert "\n" not in str(caught.value)
    assert files_below(tmp_path / "data") == []


def test_a_missing_page_and_a_dead_server(small_mnist: WebServer, tmp_path: Path) -> None:
    (small_mnist.folder / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(InputError, match="HTTP status 404"):
        fetch("mnist", tmp_path / "data", small_mnist.url)
    small_mnist.stop()
    with raises(InputError, "ConnectionError", "check the network") as caught:
        fetch("mnist", tmp_path / "data", small_mnist.url)
    assert "\n" not in str(caught.value)
    assert files_below(tmp_path / "data") == []


def test_progress_is_told(small_mnist: WebServer, tmp_path: Path) -> None:
    class Progress:
        total = 0
        num_closed = 0

        def update(self, num_bytes: int) -> None: ...

        def reset(self) -> None: ...

        def close(self) -> None:
            self.num_closed += 1

    progress = Progress()
    fetch("mnist", tmp_path / "data", small_mnist.url, progress)
    assert progress.num_closed == 4


def test_the_real_mnist_has_the_sums_of_the_table(data_dir: Path, tmp_path: Path) -> None:
    server = WebServer(data_dir / "MNIST" / "raw")
    try:
        fetch("mnist", tmp_path, server.url)
    finally:
        server.stop()
    assert len(load_dataset("mnist", tmp_path).train_y) == 60000


def test_the_real_cifar10_is_recognised_and_not_fetched(data_dir: Path) -> None:
    assert fetch("cifar10", data_dir, "http://127.0.0.1:9/") == data_dir / "cifar-10-batches-py"


def serve_cifar(
    server: WebServer, monkeypatch: pytest.MonkeyPatch, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    """An archive of these members; the table expects an honest batch under every name."""
    honest = sha256(pickle.dumps(cifar_batch(), protocol=4))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    (server.folder / "cifar-10-python.tar.gz").write_bytes(buffer.getvalue())
    known = "md5:" + hashlib.md5(buffer.getvalue()).hexdigest()
    source = SOURCES["cifar10"]
    expected = replace(source, files=dict.fromkeys(source.files, honest), archive=("cifar-10-python.tar.gz", known))
    monkeypatch.setitem(SOURCES, "cifar10", expected)


def honest_members() -> list[tuple[tarfile.TarInfo, bytes]]:
    content = pickle.dumps(cifar_batch(), protocol=4)
    return [(tarfile.TarInfo(f"cifar-10-batches-py/{file}"), content) for file in CIFAR_FILES]


def test_an_archive_is_unpacked_into_the_layout_of_the_reader(
    server: WebServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_cifar(server, monkeypatch, honest_members())
    fetch("cifar10", tmp_path / "data", server.url)
    assert files_below(tmp_path / "data") == sorted(CIFAR_FILES)
    assert len(load_dataset("cifar10", tmp_path / "data").train_y) == 50
    fetch("cifar10", tmp_path / "data", server.url)
    assert len(server.asked) == 1


def test_unexpected_members_are_never_written(
    server: WebServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    evil = [tarfile.TarInfo("../../evil"), tarfile.TarInfo(str(tmp_path / "evil")), tarfile.TarInfo("evil")]
    serve_cifar(server, monkeypatch, [(info, b"evil") for info in evil] + honest_members())
    fetch("cifar10", tmp_path / "data", server.url)
    assert [path for path in tmp_path.rglob("*evil*") if "pytest" not in path.name] == []


def linked(kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    info.type, info.linkname = kind, "/etc/passwd"
    return info, b""


@pytest.mark.parametrize(
    ("first", "parts"),
    [
        (linked(tarfile.SYMTYPE), ("data_batch_1", "not a plain file")),
        (linked(tarfile.LNKTYPE), ("data_batch_1", "not a plain file")),
        ((tarfile.TarInfo("cifar-10-batches-py/data_batch_1"), b"other"), ("data_batch_1", "known sum")),
        ((tarfile.TarInfo("elsewhere/data_batch_1"), b"other"), ("cannot be read", "KeyError")),
    ],
)
def test_bad_members_leave_nothing(
    first: tuple[tarfile.TarInfo, bytes],
    parts: tuple[str, ...],
    server: WebServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    serve_cifar(server, monkeypatch, [first, *honest_members()[1:]])
    with raises(InputError, *parts):
        fetch("cifar10", tmp_path / "data", server.url)
    assert files_below(tmp_path / "data") == []


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ham10000", ("https://doi.org/10.7910/DVN/DBW86T", "HAM10000_images_part_1/", "/ham10000")),
        ("digits", ("digits", "no download")),
        ("folder:x", ("'folder:x'", "cannot be fetched", "choose one of mnist")),
        ("cifar100", ("data set 'cifar100'", "did you mean cifar10")),
    ],
)
def test_what_cannot_be_fetched(name: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    with raises(InputError, *parts):
        fetch(name, tmp_path)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with raises(InputError, "written", "--data-dir", "HSFL_DATA"):
        fetch("mnist", tmp_path / "file", "http://127.0.0.1:9/")
