import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hsfl.runs.loop import Interruptible
from hsfl.runs.studies import compare_runs
from tests.naming import names
from tests.small_runs import assert_same_run, hsfl, numbers, read_strictly, tiny_words

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def press(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_raises_inside_the_armed_block(number):
    with Interruptible() as interruptible, pytest.raises(KeyboardInterrupt), interruptible():
        press(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_elsewhere_a_signal_waits_for_the_next_armed_block(number):
    reached = []
    with Interruptible() as interruptible:
        with interruptible():
            pass
        press(number)
        reached.append("writing went on")
        with pytest.raises(KeyboardInterrupt), interruptible():
            reached.append("a round began")
    assert reached == ["writing went on"]


def test_a_second_signal_does_not_cut_the_writing_short():
    with Interruptible() as interruptible:
        with pytest.raises(KeyboardInterrupt), interruptible():
            press()
        press()
        press(signal.SIGTERM)


def press_twice() -> None:
    try:
        press()
    finally:
        press()


def test_a_second_signal_on_the_way_out_is_not_raised_again():
    with Interruptible() as interruptible, pytest.raises(KeyboardInterrupt) as caught, interruptible():
        press_twice()
    assert caught.value.__context__ is None


def test_handlers_are_given_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interruptible():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
    with pytest.raises(KeyboardInterrupt):
        press()


def test_other_threads_leave_signals_alone():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with Interruptible() as interruptible, interruptible():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def start(*words: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "hsfl.cli", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 0)])
@pytest.mark.parametrize("call", ["run(CONFIG, OUT, ", "compare(CONFIG, ['hsfl'], OUT, "])
def test_a_signal_ends_the_program_that_called_for_the_run(call, number, code, tmp_path):
    """Once the run is saved: SIGTERM as it does without a run, Ctrl-C as the exception that it is."""
    program = f"""
import os, signal, hsfl
from hsfl.runs import progress
from hsfl.runs.studies import run_many
from tests.small_runs import tiny
class Stop(hsfl.Observer):
    def round_ends(self, record):
        os.kill(os.getpid(), {int(number)})
run_many.observer = progress.observer = lambda *_: Stop()
CONFIG, OUT = tiny(), {str(tmp_path / "out")!r}
try:
    hsfl.{call}report=False, progress=True)
except KeyboardInterrupt as stop:
    print(stop)
else:
    print("the next line")
"""
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith("" if code else "stopped after round 1")
    assert "next" not in done.stdout
    (summary,) = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("summary.json")]
    assert (summary["status"], summary["rounds"]) == ("interrupted", 1)


def test_ctrl_c_on_a_real_command(tmp_path):
    """Stopped in the middle, resumed for two more rounds: as if never stopped."""
    endless = tiny_words("model.dropout=0.2", "train.rounds=100000", "data.limit=300", "engine.name=inline")
    process = start("run", *endless, "--out", tmp_path / "run")
    assert process.stdout is not None
    for line in process.stdout:
        if re.match(r"round +2/", line):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err == ""
    (summary,) = read_strictly(tmp_path / "run/summary.json")
    done = summary["rounds"]
    assert summary["status"] == "interrupted"
    assert done >= 2
    names(out.splitlines()[-1], f"stopped after round {done}", f"hsfl run --resume --out {tmp_path / 'run'}")
    assert sorted(os.listdir(tmp_path / "run")) == [
        "checkpoint",
        "clients.json",
        "config.json",
        "cuts.json",
        "environment.json",
        "model-best.safetensors",
        "model.safetensors",
        "phases.csv",
        "report.html",
        "rounds.csv",
        "rounds.jsonl",
        "summary.json",
    ]
    assert len(numbers(tmp_path / "run")) == done

    more = ("--set", f"train.rounds={done + 2}", "--quiet")
    assert hsfl("run", "--resume", "--out", tmp_path / "run", *more).code == 0
    assert hsfl("run", *endless, *more, "--out", tmp_path / "whole").code == 0
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_ctrl_c_inside_a_text_that_a_library_executes_is_exit_code_130_too(tmp_path):
    """Python remembers a Ctrl-C in `exec`, as dataclasses and namedtuples do while modules load, and ends by the signal."""
    plugin = tmp_path / "slow.py"
    plugin.write_text('exec("import os, signal; os.kill(os.getpid(), signal.SIGINT); [None for _ in range(10**6)]")\n')
    process = start("run", *tiny_words(), "--plugin", plugin, "--out", tmp_path / "run")
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 130


def test_a_comparison_that_is_stopped_at_once_has_no_page_to_speak_of(tmp_path, monkeypatch):
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compare_runs, "run_contenders", stopped)
    answer = hsfl("compare", *tiny_words("fleet.cuts=1"), "-f", "hsfl", "-f", "fl", "--out", tmp_path / "out")
    assert (answer.code, answer.err) == (130, "")
    names(answer.out, "stopped", "same command", f"{tmp_path / 'out'}")
