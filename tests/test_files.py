"""Files that are there whole or not at all, whatever lies where they are to be."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hsfl import fleet_file
from hsfl.errors import InputError
from hsfl.files import SCRATCH, clear_scratch, is_scratch, write_atomic, write_json
from hsfl.fleet_file import check_device_is_new
from hsfl.network import history
from tests.naming import raises


def text(words: str):  # type: ignore[no-untyped-def]
    return lambda scratch: scratch.write_text(words)


def test_a_failed_write_leaves_the_old_file_and_no_scratch(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    assert path.read_text() == '{\n "a": 1\n}\n'
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("durable", [False, True])
def test_the_mode_follows_the_umask(tmp_path: Path, durable: bool) -> None:
    def careless(scratch: Path) -> None:
        scratch.unlink()  # as a library does that writes a file of its own
        scratch.write_text("x")
        scratch.chmod(0o600)

    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "x", careless, durable)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_atomic(link, text("new"))
    assert link.is_symlink()
    assert target.read_text() == "new"
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "there" / "later")
    write_atomic(dangling, text("now"))
    assert dangling.is_symlink()
    assert (tmp_path / "there" / "later").read_text() == "now"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")
def test_a_device_is_written_to_and_stays_a_device() -> None:
    with raises(InputError, "/dev/full"):
        write_atomic(Path("/dev/full"), text("x"))
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    write_atomic(Path("/dev/null"), text("x"))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_pipes_and_folders_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with raises(InputError, str(tmp_path / "pipe"), "ordinary file"):
        write_atomic(tmp_path / "pipe", text("x"))
    with pytest.raises(InputError, match="a folder"):
        write_atomic(tmp_path / "folder", text("x"))
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_what_a_killed_process_leaves_is_known_and_cleared(tmp_path: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from hsfl.files import write_atomic\n"
        f"write_atomic(Path({str(tmp_path / 'x')!r}), lambda s: (s.write_text('half'), os.kill(os.getpid(), signal.SIGKILL)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode < 0
    (left,) = tmp_path.iterdir()
    assert is_scratch(left)
    assert left.name.startswith(SCRATCH)
    clear_scratch(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["fleet.toml", "history.csv", "history.npz"])
def test_a_named_pipe_is_not_read(tmp_path: Path, name: str) -> None:
    """Reading from it would wait for a writer for ever, and /dev/full would give zeros until the memory is full."""
    os.mkfifo(tmp_path / name)
    for read in (
        (history.read_history,)
        if name.startswith("history")
        else (fleet_file.read_fleet_file, lambda path: check_device_is_new(path, "a"))
    ):
        with raises(InputError, str(tmp_path / name), "ordinary file"):
            read(tmp_path / name)


def test_a_fleet_file_that_is_no_text_is_named_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_bytes(b"\xff\xfe")
    with raises(InputError, str(tmp_path / "fleet.toml")):
        check_device_is_new(tmp_path / "fleet.toml", "a")


def test_a_table_with_an_open_quote_is_one_line(tmp_path: Path) -> None:
    rows = "".join(f"{r},0,1e9,1,1\n" for r in range(20_000))
    (tmp_path / "history.csv").write_text(f'round,client,cpu_hz,main_gain_0,edge_gain_0\n"{rows}')
    with raises(InputError, str(tmp_path / "history.csv")):
        history.read_history(tmp_path / "history.csv")


NO_DESCRIPTORS = """
import os, resource, sys, threading, time
from pathlib import Path
import torch
from hsfl.deploy.unit_store import UnitStore
from hsfl.files import write_json
from hsfl.models.state import Layout, UnitState
from hsfl.runs.run_folder.checkpoint import load_tensors, save_tensors

state = UnitState.empty(Layout((), (0,), (0,)), 0, 0)
folder, soft = Path(sys.argv[1]), 256
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
store = UnitStore(folder)
save_tensors(folder / "before.safetensors", {"a": torch.zeros(2)})
for save in (
    lambda: write_json(folder / "a.json", {"a": 1}),
    lambda: save_tensors(folder / "round-1.safetensors", {"a": torch.ones(2)}),
    lambda: store.save(2, state, {}),
):
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass

    def give_back():
        time.sleep(0.3)
        while taken:
            os.close(taken.pop())

    giving = threading.Thread(target=give_back)
    giving.start()
    save()
    giving.join()
print((folder / "a.json").read_text(), load_tensors(folder / "round-1.safetensors")[0]["a"].tolist(), store.rounds())
"""


def test_a_moment_without_descriptors_loses_no_file(tmp_path: Path) -> None:
    words = [sys.executable, "-c", NO_DESCRIPTORS, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["{", '"a":', "1", "}", "[1.0,", "1.0]", "[1,", "2]"], done.stderr


def test_something_is_done_between_the_writing_and_the_putting_in_place(tmp_path: Path) -> None:
    """The content is there and does not count yet; if that fails, the file is as before."""
    path, seen = tmp_path / "a.txt", list[str]()
    path.write_text("before")

    def look() -> None:
        (scratch,) = (other for other in tmp_path.iterdir() if other != path)
        seen.extend([scratch.read_text(), path.read_text()])

    write_atomic(path, lambda scratch: scratch.write_text("after"), durable=True, once_written=look)
    assert (seen, path.read_text()) == (["after", "before"], "after")

    def fail() -> None:
        raise InputError("no room for the record")

    with pytest.raises(InputError):
        write_atomic(path, lambda scratch: scratch.write_text("later"), once_written=fail)
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]
