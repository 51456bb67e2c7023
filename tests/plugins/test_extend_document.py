"""What docs/extend.md shows runs as it stands there, and works wherever a built-in name does."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hsfl import plugins
from hsfl.allocation.policy_table import POLICIES
from hsfl.codec_table import CODECS
from hsfl.config import RunConfig, read_config
from hsfl.data.registry import READERS
from hsfl.errors import InputError
from hsfl.framework_table import METHODS
from hsfl.frameworks.copy_per_client import HSFL
from hsfl.frameworks.framework import State
from hsfl.models.state import UnitState
from hsfl.models.zoo import MODELS
from hsfl.runs import loop
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.checkpoint import load_tensors
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.tasks import TASKS
from tests.naming import names, raises
from tests.plugins.files import BLOCKS, COMMANDS, twice, unload, write
from tests.small_runs import assert_same_run, hsfl, numbers, read_strictly, refused, tiny

EXAMPLE = Path(__file__).parents[2] / "docs/examples/scenario.json"

# --- the document


def test_each_file_of_the_document_is_complete_in_under_40_lines() -> None:
    methods = ["fedadam.py", "scaffold.py", "fednova.py", "ditto.py"]
    files = ["my.toml", "my_method.py", *methods, "my_policy.py", "my_model.py", "my_data.py", "my_task.py"]
    assert [name for name, _ in BLOCKS] == files
    assert all(text.count("\n") < 40 for _, text in BLOCKS)


def test_the_file_among_the_examples_is_that_of_the_document() -> None:
    example = EXAMPLE.with_name("my_method.py").read_text()
    assert example == "# my_method.py\n" + dict(BLOCKS)["my_method.py"]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:4]))
def test_the_commands_of_the_document_run(words: list[str], here: Path) -> None:
    if "--resume" in words or words[0] in ("evaluate", "export"):  # of the run that the command before it made
        before = next(w for w in COMMANDS if w[0] == "run" and "--resume" not in w and w[w.index("--out") + 1] in words)
        hsfl(*before, "--quiet")
        unload()
    answer = hsfl(*words)
    assert (answer.code, answer.err) == (0, ""), answer
    assert (here / "runs").exists() or words[0] == "data"


def test_the_page_of_the_document_is_about_these_methods(here: Path) -> None:
    hsfl(*COMMANDS[0], "--quiet")
    folder = here / "runs/mine"
    kept = json.loads((folder / "plugins.json").read_text())
    assert kept["plugins"][0]["file"] == "my_method.py"
    assert kept["plugins"][0]["gives"] == ["framework fedavgm"]
    unload()
    assert RunFolder(folder).config().options.model_extra == {"fedavgm": {"momentum": 0.5}}
    assert hsfl("report", folder).code == 0  # without the plugin
    page = (folder / "report.html").read_text()
    assert "FedAvgM" in page
    assert kept["plugins"][0]["sha256"] in page


def test_momentum_of_zero_is_hsfl(here: Path) -> None:
    """What the document's framework adds vanishes with its momentum: a twin."""
    config = read_config(here / "my.toml", ["options.fedavgm.momentum=0"], ["my_method.py"])
    mine = loop.train_run(config.model_copy(update={"framework": "fedavgm"}), here / "a")
    plain = loop.train_run(config, here / "b")
    losses = [[row["train_loss"] for row in numbers(here / name)] for name in "ab"]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert mine.bytes == plain.bytes
    assert [row["round_s"] for row in numbers(here / "a")] == [row["round_s"] for row in numbers(here / "b")]


# --- the formula of the document's framework


def by_the_formula(config: RunConfig, momentum: float) -> UnitState:
    """The weights after the config's rounds: v = momentum v + (mean - w), w = w + v, over one vector of the whole model, where
    mean is what a round of HSFL makes of w. Numbers that are no weights (BatchNorm's statistics) are the mean."""
    task = prepare(config.model_copy(update={"framework": "hsfl"})).task
    plain = HSFL(task)
    whole, parameters = task.initial.clone(), [name for name, _ in task.model.named_parameters()]
    velocity = {name: torch.zeros_like(whole.named()[name]) for name in parameters}
    low, high = min(plain.cuts), max(plain.cuts)
    for round_index in range(config.train.rounds):
        start = State({"main": whole[low : task.num_units].clone(), "edge": whole[0:high].clone()})
        (mean,) = plain.models(plain.round(start, range(task.num_clients), round_index)[0])
        before, after = whole.named(), mean.named()
        for name in parameters:
            velocity[name] = momentum * velocity[name] + (after[name] - before[name])
            after[name].copy_(before[name] + velocity[name])
        whole = mean
    return whole


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("rounds_before", [1, 2, 3])
def test_momentum_is_that_of_the_formula(norm: str, rounds_before: int, here: Path) -> None:
    """Mixed cuts, so that both servers hold units 1 to 4, and plain SGD, which does not hide a step that is too long; in one
    go, and across a resume."""
    words = ["options.fedavgm.momentum=0.9", "train.optimizer=sgd", "train.lr=0.05", "train.rounds=3"]
    config = read_config(here / "my.toml", [*words, f"model.norm={norm}"], ["my_method.py"])
    config = config.model_copy(update={"framework": "fedavgm"})
    first = config.model_copy(update={"train": config.train.model_copy(update={"rounds": rounds_before})})
    loop.train_run(first, here / "a")
    if rounds_before < config.train.rounds:
        loop.train_run(config, here / "a", resume=True)
    trained, expected = load_tensors(here / "a/model.safetensors")[0], by_the_formula(config, 0.9).named()
    moved = max(float((expected[name] - tensor).abs().max()) for name, tensor in trained.items())
    assert moved == 0


# --- where names work


def test_a_run_that_goes_on_is_the_run_in_one_go(here: Path) -> None:
    words = ("--plugin", "my_method.py", "--quiet")
    hsfl("run", "my.toml", "--framework", "fedavgm", *words, "--set", "train.rounds=1", "--out", "a")
    hsfl("run", "--resume", "--out", "a", "--set", "train.rounds=3", *words)
    hsfl("run", "my.toml", "--framework", "fedavgm", *words, "--set", "train.rounds=3", "--out", "b")
    assert_same_run(here / "a", here / "b")


def test_plugins_of_a_config_that_the_user_passes(here: Path) -> None:
    text = (here / "my.toml").read_text().replace('"hsfl"', '"fedavgm"\nplugins = ["my_method.py"]')
    write(here / "own.toml", text)
    assert hsfl("run", "own.toml", "--out", "a", "--quiet").code == 0
    assert "plugins" not in json.loads((here / "a/config.json").read_text())
    unload()
    config = tiny().model_copy(update={"plugins": ("my_method.py",), "framework": "fedavgm"})
    assert loop.train_run(config, here / "b").status == "finished"
    assert json.loads((here / "b/config.json").read_text())["options"]["fedavgm"] == {"momentum": 0.9}


def test_a_policy_in_a_run_and_in_a_plan(here: Path) -> None:
    words = ("--plugin", "my_policy.py")
    assert hsfl("run", "my.toml", *words, "--set", "allocation.policy=by_work", "--quiet", "--out", "a").code == 0
    first = read_strictly(here / "a/rounds.jsonl")[0]["allocation"]
    assert (first["policy"], first["status"]) == ("by_work", "heuristic")
    assert 0 < first["gap"] < 1
    assert sum(first["server_hz"]) == pytest.approx(1e12)
    plan = hsfl("plan", "my.toml", *words, "--set", "allocation.policy=by_speed", "--input", "1,8,8", "--json").json()
    assert plan["policy"] == "by_speed"
    assert plan["baselines_s"]["by_speed"] >= plan["baselines_s"]["proposed"] * (1 - 1e-6)


def test_options_of_a_model_in_cost_and_of_a_policy_in_allocate(here: Path) -> None:
    words = ("cost", "gelu_mlp", "--plugin", "my_model.py", "--input", "12,2", "--json")
    small, usual = (hsfl(*words, *more).json() for more in (("--set", "options.gelu_mlp.width=4"), ()))
    assert small["model_bits"][1] == 32 * (12 * 2 * 4 + 4)
    assert usual["model_bits"][1] == 32 * (12 * 2 * 32 + 32)
    names(refused(*words, "--set", "train.rounds=3"), "no effect", "options.gelu_mlp.FIELD")
    words = ("allocate", EXAMPLE, "--plugin", "my_policy.py", "--solver", "by_speed", "--json")
    few, all_slow = (hsfl(*words, "--set", f"options.by_speed.slow={part}").json()["cuts"] for part in (0, 1))
    assert sum(few) > sum(all_slow)


def test_columns_of_the_table_are_contenders(here: Path) -> None:
    from hsfl.experiments.common import claim_plugins
    from hsfl.experiments.table1.column_clock import column_clock
    from hsfl.experiments.table1.columns import COLUMNS, TWIN_TRACE, base_config, columns_named, trace_config
    from hsfl.experiments.table1.fleets import cost_of
    from hsfl.planning.world import world_of

    plugins.load_plugin("my_method.py")
    label = "fedavgm,options.fedavgm.momentum=0.5"
    assert columns_named(f"{label},sl,hsfl,allocation.policy=gtra") == (
        *(label, "sl", "hsfl,allocation.policy=gtra"),
        *("splitfed_v1", "hsfl"),
    )
    assert (COLUMNS[label].trace, COLUMNS[label].policy, COLUMNS[label].cuts) == (label, "even", "own")
    assert COLUMNS["hsfl,allocation.policy=gtra"].trace == TWIN_TRACE
    assert COLUMNS["fsl,options.fsl.average=server"].trace == "fsl,options.fsl.average=server"  # learns something else
    assert COLUMNS[label].title == "FedAvgM (momentum 0.5)"
    named = f"sl,Mine={label}"
    assert columns_named(named)[:2] == ("sl", f"Mine={label}")
    assert (COLUMNS[f"Mine={label}"].title, COLUMNS[f"Mine={label}"].trace) == (
        "Mine",
        label,
    )  # a name costs no training
    trained = trace_config("digits", "smoke", 1, label)
    assert (trained.framework, trained.options.of("fedavgm").momentum) == ("fedavgm", 0.5)
    config = COLUMNS[label].config(base_config("digits", "smoke", 1))
    world, counts = world_of(config, cost_of(config)), np.full(10, 16.0)
    same = column_clock(config.model_copy(update={"framework": "hsfl"}), world, [3] * 10, counts)
    everyone = tuple(range(10))
    assert (
        column_clock(config, world, [3] * 10, counts).round(0, everyone)[0].round_s
        == same.round(0, everyone)[0].round_s
    )
    with raises(InputError, "fedavgm,model.name=mlp", "contenders share"):
        columns_named("fedavgm,model.name=mlp")
    with raises(InputError, "column 'fedavg'", "did you mean fedavgm"):
        columns_named("fedavg")
    used = {label: [("framework", "fedavgm")]}
    claim_plugins(here, used)
    claim_plugins(here, used)
    unload()
    plugins.load_plugin(write(here / "my_method.py", (here / "my_method.py").read_text() + "\n# another\n"))
    with raises(InputError, "another plugin file", "put that file back"):
        claim_plugins(here, used)


def test_an_installed_entry_point_is_loaded_for_its_name_alone(tmp_path: Path) -> None:
    """In processes of their own, as packages are found when Python starts."""
    about = tmp_path / "site/mine-1.0.dist-info"
    about.mkdir(parents=True)
    write(about / "METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    write(about / "entry_points.txt", "[hsfl]\ntwice = mine_module\nfl = mine_broken\ncnn = mine_broken\n")
    twice(tmp_path / "site/mine_module.py")
    write(tmp_path / "site/mine_broken.py", "raise RuntimeError('not for you')")
    write(tmp_path / "site/config.json", '{"framework": "twice", "options": {"twice": {"x": 1}}}')
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from hsfl.config import RunConfig, read_config
from hsfl.framework_table import METHODS
read_config(None, ["framework=fl", "model.name=cnn"])
read_config(sys.argv[1] + "/config.json")  # of a run folder: nothing is looked for
assert not {"mine_module", "mine_broken", "torch"} & set(sys.modules)
print(read_config(None, ["framework=twice"]).framework, METHODS["twice"].source, METHODS["twice"].timing.tau)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "site")], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("twice mine 1.0 True\n", "")


def test_built_in_names_are_those_of_the_tables(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No second list of names: each table is asked, and what a plugin put there is not built in."""
    tables = {
        "framework": METHODS,
        "policy": POLICIES,
        "model": MODELS,
        "data set": READERS,
        "task": TASKS,
        "codec": CODECS,
    }
    assert tables.keys() == plugins.TABLES.keys()
    assert all(plugins._is_built_in(kind, name) for kind, table in tables.items() for name in table)
    plugins.load_plugin("my_method.py")
    assert "fedavgm" in METHODS
    assert not plugins._is_built_in("framework", "fedavgm")
    monkeypatch.setitem(plugins.TABLES, "policy", "no.such.extra:POLICIES")
    assert not plugins._is_built_in("policy", "even")


def test_no_table_but_that_of_policies_takes_torch_or_numba() -> None:
    modules = [place.partition(":")[0] for kind, place in plugins.TABLES.items() if kind != "policy"]
    code = f"import sys, {', '.join(modules)}\nassert not {{'torch', 'numba'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
