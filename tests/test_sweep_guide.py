"""docs/sweep.md as it stands: its config, its commands, the files and metrics that it names."""

import csv
import re
import shlex
from pathlib import Path

import pytest

from tests.small_runs import hsfl

GUIDE = Path(__file__).parents[1] / "docs/sweep.md"


@pytest.mark.slow  # test_sweep.py has the same in little
def test_the_guide_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = GUIDE.read_text()
    (config,) = re.findall(r"```toml\n(# my.toml\n.*?)```", text, re.S)
    (tmp_path / "my.toml").write_text(config)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^    hsfl (.+)$", text, re.M)
    assert len(commands) == 4
    for command in commands:
        answer = hsfl(*shlex.split(command), "--quiet")
        assert answer.code == 0, answer.err
    for name in re.findall(r"`(sweep\.\w+|report\.html|table-[\w-]+\.csv)`", text):
        assert Path("runs/bandwidth", name).stat().st_size > 100
    for name in ("final_accuracy", "best_accuracy", "megabytes", "time_to_target_s"):
        figures = {path.suffix for path in Path("runs/bandwidth").glob(f"{name}.*")}
        assert figures == ({".pdf", ".png", ".svg"} if name != "time_to_target_s" else set())
    with Path("runs/bandwidth/sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    said = re.findall(r"`(\w+)`", re.search(r"The metrics: (.*?)\. Bars", text, re.S)[1])  # type: ignore[index]
    unknown = {"gap", "time_to_target_s"}  # nothing is allocated with a bound, and only some runs reach the target
    assert set(said) - unknown <= rows[0].keys()
    assert len(Path("runs/grid/sweep.csv").read_text().splitlines()) == 1 + 6
