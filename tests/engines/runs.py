"""A small run that engines must train alike, and who is left of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hsfl.config import RunConfig, read_config
from hsfl.runs.run_folder.folder import RunFolder

SMALL = ["data.name=digits", "data.limit=240", "data.limit_test=60", "model.name=cnn", "train.batch_size=16",
         "train.rounds=2", "fleet.num_clients=5", "fleet.cuts=[1,2,3,1,2]", "train.optimizer=adam"]  # fmt: skip
ROBUST = ("train.average=median", "train.clip_norm=0.5", "attack.kind=noise", "attack.share=0.4", "train.drop_rate=0.3")
DROPS = ("train.drop_rate=0.3", "train.rounds=3")


def config(*changes: str) -> RunConfig:
    return read_config(None, [*SMALL, *changes])


def model_bytes(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def losses(folder: Path) -> list[tuple[float | None, float | None, float | None]]:
    return [(r.train_loss, r.test_loss, r.test_accuracy) for r in RunFolder(folder).rounds()]


def command(out: Path, *changes: str) -> list[str]:
    """`hsfl run` with the small settings and these changes."""
    words = [word for change in (*SMALL, *changes) for word in ("--set", change)]
    return [sys.executable, "-m", "hsfl", "run", *words, "--out", str(out)]


def begun(words: list[str]) -> subprocess.Popen[str]:
    """A command in a session of its own, so that all its processes can be found and signalled."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True)


def session_of(leader: int) -> list[int]:
    """The processes of a session, its leader left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z" and int(entry.name) != leader:
                found.append(int(entry.name))
    return found


def until(seconds: float, condition) -> bool:  # type: ignore[no-untyped-def]
    """Whether a condition comes true within so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def ctrl_c(process: subprocess.Popen[str]) -> None:
    """What a terminal does: the signal reaches every process of the group."""
    os.killpg(process.pid, signal.SIGINT)
