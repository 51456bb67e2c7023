"""The page and its data: what is encoded can be read back, sums agree with the folder, no text becomes markup."""

import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hsfl.errors import InputError
from hsfl.files import read_json, write_json
from hsfl.framework_table import METHODS
from hsfl.network.clock import PHASES, Why
from hsfl.report.compared_runs import Run
from hsfl.report.page import page_rounds
from hsfl.report.page.page import page_data, render, safe_json, write_page
from hsfl.report.page.page_rounds import (
    client_counts,
    gantt_strides,
    phase_columns,
    round_columns,
    short_number,
    shown_clients,
)
from hsfl.report.page.page_sources import read_sources
from hsfl.report.page.page_words import describe_config, policy_sentences, settings_rows
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import names, raises
from tests.report.fabricated import a_timeline, data_in, record, records, timed, write_run
from tests.small_runs import hsfl, refused, tiny, tiny_words

EVIL = '</script><script>alert(1)</script><!-- & "quoted" -->'


def decoded(encoded: dict, num_clients: int) -> dict[str, list[tuple[float, float]]]:
    """Start and end by phase, as gantt.js reads them."""
    now, spans = [0.0] * num_clients, {}
    for phase, (start, length) in encoded.items():
        spans[phase] = []
        for k in range(num_clients):
            long = length[k] if isinstance(length, list) else length
            begin = now[k] if start is None else start[k] if isinstance(start, list) else start
            spans[phase].append((begin, begin + long) if long > 0 else (0.0, 0.0))
            now[k] = begin + long if long > 0 else now[k]
    return spans


@pytest.mark.parametrize("name", METHODS)
def test_bars_are_those_of_the_record_to_six_digits(name):
    line = a_timeline(name, 5, tau_s=2.0 if METHODS[name].timing.tau else np.inf)
    one = timed(line)
    spans = decoded(phase_columns(one, range(5)), 5)
    assert set(spans) == set(one.phases)
    for phase, times in one.phases.items():
        for k, (start, end) in enumerate(spans[phase]):
            length = times["end_s"][k] - times["start_s"][k]
            assert end - start == pytest.approx(length, rel=1e-5, abs=1e-12)
            if length > 0:
                assert start == pytest.approx(times["start_s"][k], abs=len(PHASES) * 1e-6 * line.round_s)


def test_a_phase_that_follows_needs_no_start_and_equal_numbers_are_one():
    one = record(
        phases={
            "client_forward": {"start_s": [0.0, 0.0], "end_s": [1.0, 2.0]},
            "smashed": {"start_s": [1.0, 2.0], "end_s": [1.5, 2.5]},
            "model_down": {"start_s": [2.5, 2.5], "end_s": [3.0, 3.25]},
        },
        round_s=3.25,
    )
    assert phase_columns(one, [0, 1]) == {
        "client_forward": [None, [1, 2]],
        "smashed": [None, 0.5],
        "model_down": [2.5, [0.5, 0.75]],
    }


@pytest.mark.parametrize(("value", "wanted"), [(0.0, 0), (123456.0, 123500), (0.00123456, 0.001235), (None, None)])
def test_short_numbers(value, wanted):
    assert short_number(value) == wanted
    assert json.dumps(short_number(value)) == json.dumps(wanted)


def test_columns_have_an_entry_for_each_round():
    rounds = records([0.1, None, 0.3])
    rounds[2] = replace(rounds[2], started=[1], kept=[], dropped=[1], cuts=[1, 3])
    columns = round_columns(rounds, ["client_main_up", "edge_main"], stride=2)
    assert {len(column) for column in columns.values()} == {3}
    assert columns["test_accuracy"] == [0.1, None, 0.3]
    assert columns["bytes"][0] == [100, 10]
    assert columns["cuts"] == [[1, 2], None, [1, 3]]
    assert (columns["away"][2], columns["dropped"][2]) == ([0], [1])
    assert [rows is not None for rows in columns["rows"]] == [True, False, True]  # the second has no chart


def test_counts_of_clients():
    rounds = [
        record(1, started=[0, 1], kept=[0], dropped=[1], straggler=1, waiting_s=[3.0, 1e-15]),
        record(2, started=[0], kept=[0], dropped=[], straggler=0, waiting_s=[1.5, 0.0]),
    ]
    assert client_counts(rounds) == {
        "kept": [2, 0],
        "dropped": [0, 1],
        "left_out": [0, 1],
        "straggler": [1, 1],
        "waiting_s": [4.5, 0],
    }


def test_where_all_finish_together_nobody_is_the_straggler():
    level = record(1, straggler=1, waiting_s=[1e-14, 3e-15])
    late = record(2, straggler=1, waiting_s=[1e-4, 0.0])
    dropped = record(3, straggler=1, waiting_s=[1e-14, 0.0], kept=[0], dropped=[1])
    columns = round_columns([level, late, dropped], [], stride=1)
    assert columns["straggler"] == [None, 1, 1]
    assert columns["together"] == [True, False, False]
    assert client_counts([level, late])["straggler"] == [0, 1]
    held = Why(1, "client", 9.0, 9.0, 1.0, 1.0)
    level, late = (replace(one, why=held) for one in (level, late))
    alone, named = round_columns([level, late], [], stride=1)["why"]
    assert alone is None  # a sentence would name the client
    assert "client 1" in named


def test_every_policy_of_the_page_is_explained(tmp_path):
    """Those of runs, plans and sweeps; of a plugin's policy no more is known than that."""
    policies = ("even", "own", "scls+ecfa")
    runs = [
        write_run(
            tmp_path, f"hsfl,fleet.num_clients={k + 2}", 0, records([0.5]), "finished", f"allocation.policy={policy}"
        )
        for k, policy in enumerate(policies)
    ]
    sources = read_sources([run.path for run in runs])
    explained = dict(page_data(sources)["policies"])
    assert list(explained) == ["even", "own", "scls+ecfa", "proposed"]  # what `own` stands for here, too
    assert all(sentence.endswith(".") and len(sentence.split()) >= 8 for sentence in explained.values())
    names(explained["scls+ecfa"], "smallest max_cut", "cycles are divided evenly")
    names(explained["own"], "proposed for HSFL")
    names(dict(policy_sentences(["mine"]))["mine"], "plugin")


def test_of_many_clients_the_straggler_and_the_busiest_are_shown(monkeypatch):
    monkeypatch.setattr(page_rounds, "MAX_CLIENTS", 2)
    one = record(cuts=[1, 1, 1, 1], started=[0, 1, 3], straggler=3, waiting_s=[2.0, 1.0, 0.0, 9.0])
    assert shown_clients(one) == [1, 3]
    assert shown_clients(replace(one, framework="cl")) == [0]


def test_many_rounds_are_thinned_to_the_first_seeds(monkeypatch):
    rounds = records([0.5] * 10)  # one phase of two clients: 20 bars a run
    runs = [Run(label, seed, rounds, "finished", 100.0) for label in ("fl", "hsfl") for seed in (0, 1)]
    assert gantt_strides(runs) == [1, 1, 1, 1]
    monkeypatch.setattr(page_rounds, "MAX_BARS", 15)
    assert gantt_strides(runs) == [3, None, 3, None]  # 40 bars of the first seeds, every third round


def test_a_run_on_the_page_is_the_run_in_the_folder(finished, tmp_path):
    data = data_in(write_page([finished], tmp_path / "page.html"))
    (run,) = data["runs"]
    summary, rounds = read_json(finished / "summary.json"), RunFolder(finished).rounds()
    assert run["best_accuracy"] == summary["best_accuracy"]
    assert (run["best_round"], run["num_rounds"], run["drops"]) == (
        summary["best_round"],
        summary["rounds"],
        summary["drops"],
    )
    assert run["bytes"] == summary["bytes"]
    assert run["sim_time_s"] == summary["sim_time_s"]
    assert run["rounds"]["test_accuracy"] == pytest.approx([one.test_accuracy for one in rounds])
    assert run["status"] == "finished"
    (series,) = data["series"]
    assert series["curves"]["train_loss"]["rounds"]["mean"] == pytest.approx([r.train_loss for r in rounds], rel=1e-5)


def test_clients_are_recorded(finished):
    clients = RunFolder(finished).clients()
    assert clients is not None
    assert sum(clients.num_samples) == 400
    assert [sum(counts) for counts in clients.class_counts] == clients.num_samples
    assert len(clients.class_names) == len(clients.class_counts[0]) == 10
    assert clients.cuts == [1, 2, 5]
    drawn = tiny(
        "fleet.cuts=max_cut", "data.limit=400"
    )  # what was drawn stays what it is beside a deeper cut that was given
    assert clients.max_cut == prepare(drawn).world.fleet.max_cut.tolist()
    assert clients.names is None


def test_an_older_folder_says_not_recorded(tmp_path):
    folder = write_run(tmp_path, "hsfl", 0, records([0.5]))
    assert page_data(read_sources([folder.path]))["runs"][0]["clients"] is None


def test_text_from_folders_stays_text(tmp_path):
    folder = write_run(tmp_path, "hsfl", 0, records([0.5]), "finished", f"data.name={json.dumps('folder:' + EVIL)}")
    write_json(folder.path / "environment.json", {"python": EVIL})
    text = write_page([folder.path], tmp_path / "page.html").read_text("utf-8")
    assert EVIL not in text
    assert text.count("<script") == 2  # the data, and the page's own
    assert text.count("</script") == 2
    assert "<title>HSFL: resnet18 on folder:&lt;/script&gt;" in text
    assert data_in(tmp_path / "page.html")["runs"][0]["environment"]["python"] == EVIL


def test_safe_json_is_the_same_json():
    value = {"<": ["&", ">", "\u2028", "ü", EVIL]}
    text = safe_json(value)
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == value


def test_nothing_comes_from_elsewhere(finished, tmp_path):
    text = write_page([finished], tmp_path / "page.html").read_text("utf-8")
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert re.search(r"connect-src 'none'", text)
    assert not re.search(r"\b(src|href)=\"(?!#|data:)", text)
    assert "connect-src 'self'" in render(page_data(read_sources([finished])), watch=True)


def test_the_same_folder_gives_the_same_page(finished, tmp_path):
    pages = [write_page([finished], tmp_path / name).read_bytes() for name in ("a.html", "b.html")]
    assert pages[0] == pages[1]


def test_words_say_how_the_data_were_divided():
    assert " divided evenly among 3 clients" in describe_config(tiny())[0]
    assert " divided by class (2 classes each) among" in describe_config(tiny("data.partition=shards"))[0]
    assert " drawn with replacement evenly among" in describe_config(tiny(), redrawn=True)[0]
    assert (
        " drawn with replacement by class (2 classes each) among"
        in describe_config(tiny("data.partition=shards"), redrawn=True)[0]
    )


def test_real_machines_are_not_described_by_the_settings_of_a_radio():
    words = " ".join(describe_config(tiny(), on_machines=True))
    assert "on real machines, up to 3 devices, each with data of its own" in words
    assert not any(word in words for word in ("radio", "cycles", "evenly"))


def test_words_say_when_the_clock_charges_more_than_was_trained():
    config = tiny("network.sample_scale=10")
    assert "each sample as 10" in " ".join(describe_config(config))
    assert "each sample" not in " ".join(describe_config(tiny()))


@pytest.mark.parametrize("name", METHODS)
def test_words_name_what_matters(name):
    config = tiny(f"framework={name}", "train.tau_s=60", "train.drop_rate=0.25", "data.partition=dirichlet")
    words = " ".join(describe_config(config))
    for part in ("trains cnn", "3 clients", "longer than 60 s", "probability 0.25", "alpha 0.5", "3 rounds", "Seed 0"):
        assert part in words
    assert "1 Tcycles/s" in words


def test_settings_say_what_differs():
    rows = {row["name"]: row for row in settings_rows({"a": tiny(), "b": tiny("train.lr=0.5")})}
    assert rows["train.lr"]["values"] == {"a": "0.01", "b": "0.5"}
    assert rows["model.name"] == {"name": "model.name", "usual": False, "value": "cnn"}
    assert rows["train.momentum"]["usual"]


def test_report_says_where_the_page_is(finished, tmp_path):
    answer = hsfl("report", finished, "-o", tmp_path / "p.html", "--json").json()
    assert answer == {"path": str(tmp_path / "p.html"), "bytes": (tmp_path / "p.html").stat().st_size}
    with raises(InputError, "config.json", "another place"):
        write_page([finished], finished / "config.json" / "p.html")


def test_run_ends_with_its_page(tmp_path):
    answer = hsfl("run", *tiny_words(), "--quiet", "--out", tmp_path / "run")
    assert answer.code == 0
    assert "report.html" in answer.out
    assert data_in(tmp_path / "run" / "report.html")["runs"][0]["num_rounds"] == 3
    again = hsfl("run", "--resume", "--set", "train.rounds=4", "--out", tmp_path / "run", "--quiet", "--json").json()
    assert again["report"] == str(tmp_path / "run" / "report.html")
    assert data_in(tmp_path / "run" / "report.html")["runs"][0]["num_rounds"] == 4


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path):
    hsfl("run", *tiny_words(), "--quiet", "--out", tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    (tmp_path / "run" / "report.html").mkdir()
    answer = hsfl("run", "--resume", "--set", "train.rounds=4", "--out", tmp_path / "run", "--quiet")
    assert answer.code == 0
    names(answer.err, "warning:", "report.html")


def test_plan_writes_the_same_page(tmp_path):
    pytest.importorskip("pyscipopt")
    words = [*tiny_words("network.kind=measured", "network.main_up_bps=5e6", "network.main_down_bps=2e7")]
    answer = hsfl("plan", *words, "--input", "1,8,8", "--out", tmp_path / "plan", "--json").json()
    (plan,) = data_in(tmp_path / "plan" / "report.html")["plans"]
    assert plan["clients"] == answer["clients"]
    assert "3 clients with 20 samples each" in plan["words"]
    stored = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert plan["words"] == " ".join(stored.pop("assumed"))
    (tmp_path / "plan" / "plan.json").write_text(json.dumps(stored))
    names(refused("report", tmp_path / "plan"), "plan.json: assumed", "missing")
    names(refused("plan", "--device", "cpu=1e9,up=1e6,down=1e6", "-o", tmp_path / "x"), "--device")


def test_allocation_of_a_round_is_kept_to_four_digits():
    says = {"policy": "proposed", "status": "optimal", "gap": 0.00123456, "lower_bound_s": 1.0, "seconds": 0.1}
    says |= {"server_hz": [123456789.0, 0.0], "owner": [0, 1, 0], "up_power_w": [1.0, 2.0]}
    kept = page_rounds.short_allocation(says)
    assert kept is not None
    assert (kept["server_hz"], kept["gap"], kept["owner"]) == ([123500000, 0], 0.001235, [0, 1, 0])
    assert "down_power_w" not in kept
    assert page_rounds.short_allocation({"policy": "even"}) is None


@pytest.mark.slow
def test_the_wheel_carries_the_assets(tmp_path):
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(root)]
    subprocess.run(command, check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assets = {f"hsfl/report/assets/{path.name}" for path in (root / "src/hsfl/report/assets").iterdir()}
    assert assets
    assert assets <= names


def test_reading_changes_nothing(finished):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    page_data(read_sources([finished]))
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before
