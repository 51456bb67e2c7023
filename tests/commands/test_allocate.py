"""`hsfl allocate`: the answer file, and what it must not import."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from hsfl.allocation.random_scenarios import random_scenario
from hsfl.allocation.scenario import Scenario
from hsfl.cli import app

FIELDS = {
    "status", "cuts", "kept", "server_hz", "owner", "edge_down_owner", "main_up_power_w", "main_down_power_w",
    "edge_up_power_w", "edge_down_power_w", "phases", "round_s", "lower_bound_s", "gap", "seconds",
}  # fmt: skip


def run(tmp_path, scenario, *options):
    (tmp_path / "a.json").write_text(json.dumps(scenario.to_dict()))
    result = CliRunner().invoke(app, ["allocate", str(tmp_path / "a.json"), "--json", *options])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_fields_for_given_cuts(tmp_path):
    scenario = random_scenario(np.random.default_rng(0), 3, 5)
    answer = run(tmp_path, scenario, "--cuts", "1,2,3", "--out", str(tmp_path / "out.json"))
    assert set(answer) == FIELDS
    assert json.loads((tmp_path / "out.json").read_text())["cuts"] == answer["cuts"] == [1, 2, 3]
    assert np.shape(answer["main_up_power_w"]) == (3, 5)
    assert len(answer["owner"]) == len(answer["edge_down_owner"]) == 5
    assert all(len(values) == 3 for values in answer["phases"].values())
    assert answer["gap"] == (answer["round_s"] - answer["lower_bound_s"]) / answer["round_s"]
    assert (
        list(tmp_path.iterdir()) == [tmp_path / "out.json", tmp_path / "a.json"] or len(list(tmp_path.iterdir())) == 2
    )


def test_chosen_cuts_come_with_a_bound_over_all_cuts(tmp_path):
    scenario = random_scenario(np.random.default_rng(1), 3, 5)
    answer = run(tmp_path, scenario)
    assert set(answer) == FIELDS | {"cuts_lower_bound_s"}
    assert answer["cuts_lower_bound_s"] <= answer["round_s"]
    by_hand = run(tmp_path, scenario, "--cuts", ",".join(map(str, scenario.max_cut)))
    assert answer["round_s"] <= by_hand["round_s"] * 1.001
    assert answer["cuts_lower_bound_s"] <= by_hand["round_s"]


def test_shared_bands(tmp_path):
    scenario = random_scenario(np.random.default_rng(1), 6, 3, sharing="bandwidth")
    answer = run(tmp_path, scenario, "--cuts", "1,1,1,1,1,1")
    assert set(answer) == FIELDS - {"owner", "edge_down_owner"} | {"share", "edge_down_share"}
    assert np.shape(answer["share"]) == (6, 3)


def test_dropped_clients_have_no_phases(tmp_path):
    free = random_scenario(np.random.default_rng(2), 4, 6)
    cuts = ",".join(map(str, free.max_cut))
    whole = run(tmp_path, free, "--cuts", cuts)
    data = free.to_dict() | {"tau_s": 0.6 * whole["round_s"]}
    answer = run(tmp_path, Scenario.from_dict(data), "--cuts", cuts)
    assert answer["status"] == "dropped"
    out = answer["kept"].index(False)
    assert answer["phases"]["smashed_s"][out] is None
    assert answer["phases"]["model_down_s"][out] > 0
    assert answer["server_hz"][out] == 0
    assert out not in answer["owner"]
    assert answer["round_s"] <= 0.6 * whole["round_s"] + max(answer["phases"]["model_down_s"])


def test_the_documented_example(monkeypatch):
    """The file beside the docs is the one printed in them, it works, and every field is described."""
    docs = Path(__file__).parents[2] / "docs"
    text, example = (docs / "scenario.md").read_text(), docs / "examples" / "scenario.json"
    assert example.read_text() in text
    result = CliRunner().invoke(app, ["allocate", str(example), "--json"])
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["status"] == "optimal"
    monkeypatch.chdir(docs.parent)
    exec(text.split("```python\n")[1].split("```")[0].replace('answer.write("answer.json")', ""), {})
    for name, value in json.loads(example.read_text()).items():
        for field in [f"{name}.{part}" for part in value] if isinstance(value, dict) else [name]:
            assert f"| `{field}` |" in text, field
    for name in FIELDS | {"share", "edge_down_share", "cuts_lower_bound_s"}:
        assert f"`{name}" in text, name


def test_help_says_where_the_format_is():
    assert "docs/scenario.md" in CliRunner().invoke(app, ["allocate", "--help"]).stdout


def test_imports_no_torch(tmp_path):
    scenario = random_scenario(np.random.default_rng(0), 2, 3)
    (tmp_path / "a.json").write_text(json.dumps(scenario.to_dict()))
    code = (
        "import sys; from hsfl.cli import app\n"
        f"try: app(['allocate', {str(tmp_path / 'a.json')!r}, '--json', '--cuts', '1,1'])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
