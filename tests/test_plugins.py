"""Methods of one's own from one file: what docs/extend.md shows runs as it stands there, and what is wrong is one line."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hsfl import plugins
from hsfl.allocation.policies import POLICIES
from hsfl.config import parse_config, read_config
from hsfl.data.datasets import READERS, load
from hsfl.errors import InputError
from hsfl.frameworks.parallel import HSFL
from hsfl.methods import METHODS, register_framework
from hsfl.models.zoo import MODELS
from hsfl.report.comparison import read_comparison
from hsfl.report.plots import learning_figure
from hsfl.runs import loop
from hsfl.runs.compare import run_or_resume
from hsfl.runs.folder import RunFolder
from hsfl.training.batches import Images
from tests.report.fabricated import records, write_run
from tests.small_runs import assert_same_run, hsfl, numbers, read_strictly, refused, tiny, tiny_words

DOC = Path(__file__).parents[1] / "docs" / "extend.md"
BLOCKS = re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", DOC.read_text(), re.M | re.S)
COMMANDS = [shlex.split(line.removeprefix("    hsfl ")) for line in re.findall(r"^    hsfl .*$", DOC.read_text(), re.M)]
TWICE = """
import hsfl
from hsfl.frameworks.parallel import {base}


class Twice({base}):
    pass


hsfl.register_framework("{name}", Twice{more})
"""


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Every test begins and ends without plugins."""
    plugins.unload()
    yield
    plugins.unload()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of docs/extend.md, in which commands are typed."""
    for name, text in BLOCKS:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def twice(path: Path, base: str = "HSFL", name: str = "twice", more: str = "") -> Path:
    """A plugin whose framework is a built-in one under another name."""
    return write(path, TWICE.format(base=base, name=name, more=more))


# --- the document


def test_each_file_of_the_document_is_complete_in_under_40_lines() -> None:
    assert [name for name, _ in BLOCKS] == ["my.toml", "my_method.py", "my_policy.py", "my_model.py", "my_data.py"]
    assert all(text.count("\n") < 40 for _, text in BLOCKS)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:4]))
def test_the_commands_of_the_document_run(words: list[str], here: Path) -> None:
    if "--resume" in words or words[0] in ("evaluate", "export"):  # of the run that the command before it made
        before = next(w for w in COMMANDS if w[0] == "run" and "--resume" not in w and w[w.index("--out") + 1] in words)
        hsfl(*before, "--quiet")
        plugins.unload()
    answer = hsfl(*words)
    assert (answer.code, answer.err) == (0, ""), answer
    assert (here / "runs").exists() or words[0] == "data"


def test_the_page_of_the_document_is_about_these_methods(here: Path) -> None:
    hsfl(*COMMANDS[0], "--quiet")
    folder = here / "runs/mine"
    kept = json.loads((folder / "plugins.json").read_text())
    assert kept["plugins"][0]["file"] == "my_method.py"
    assert kept["plugins"][0]["gives"] == ["framework fedavgm"]
    plugins.unload()
    assert RunFolder(folder).config().options.model_extra == {"fedavgm": {"momentum": 0.5}}
    assert hsfl("report", folder).code == 0  # without the plugin
    page = (folder / "report.html").read_text()
    assert "FedAvgM" in page
    assert kept["plugins"][0]["sha256"] in page


def test_momentum_of_zero_is_hsfl(here: Path) -> None:
    """What the document's framework adds vanishes with its momentum: a twin."""
    config = read_config(here / "my.toml", ["options.fedavgm.momentum=0"], ["my_method.py"])
    mine = loop.run(config.model_copy(update={"framework": "fedavgm"}), here / "a")
    plain = loop.run(config, here / "b")
    losses = [[row["train_loss"] for row in numbers(here / name)] for name in "ab"]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert mine.bytes == plain.bytes
    assert [row["round_s"] for row in numbers(here / "a")] == [row["round_s"] for row in numbers(here / "b")]


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
    plugins.unload()
    config = tiny().model_copy(update={"plugins": ("my_method.py",), "framework": "fedavgm"})
    assert loop.run(config, here / "b").status == "finished"
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


def test_columns_of_the_table_are_contenders(here: Path) -> None:
    from hsfl.experiments.columns import COLUMNS, TWIN_TRACE, base_config, columns_named, trace_config
    from hsfl.experiments.fleets import column_clock, cost_of
    from hsfl.experiments.shared import claim_plugins
    from hsfl.planning.world import world_of

    plugins.load("my_method.py")
    label = "fedavgm,options.fedavgm.momentum=0.5"
    assert columns_named(f"{label},sl,hsfl,allocation.policy=gtra") == (
        *(label, "sl", "hsfl,allocation.policy=gtra"),
        *("splitfed_v1", "hsfl"),
    )
    assert (COLUMNS[label].trace, COLUMNS[label].policy, COLUMNS[label].cuts) == (label, "even", "own")
    assert COLUMNS["hsfl,allocation.policy=gtra"].trace == TWIN_TRACE
    assert COLUMNS["fsl,options.fsl.average=server"].trace == "fsl,options.fsl.average=server"  # learns something else
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
    with pytest.raises(InputError, match=r"fedavgm,model.name=mlp changes model.name, which all contenders share"):
        columns_named("fedavgm,model.name=mlp")
    with pytest.raises(InputError, match="column 'fedavg' is unknown; did you mean fedavgm"):
        columns_named("fedavg")
    used = {label: [("framework", "fedavgm")]}
    claim_plugins(here, used)
    claim_plugins(here, used)
    plugins.unload()
    plugins.load(write(here / "my_method.py", (here / "my_method.py").read_text() + "\n# another\n"))
    with pytest.raises(InputError, match=r"of another plugin file; put that file back"):
        claim_plugins(here, used)


def test_an_installed_entry_point_is_loaded_for_its_name_alone(tmp_path: Path) -> None:
    """In processes of their own, as packages are found when Python starts."""
    about = tmp_path / "site/mine-1.0.dist-info"
    about.mkdir(parents=True)
    write(about / "METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    write(about / "entry_points.txt", "[hsfl]\ntwice = mine_module\nfl = mine_broken\n")
    twice(tmp_path / "site/mine_module.py")
    write(tmp_path / "site/mine_broken.py", "raise RuntimeError('not for you')")
    write(tmp_path / "site/config.json", '{"framework": "twice", "options": {"twice": {"x": 1}}}')
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from hsfl.config import read_config
from hsfl.methods import METHODS
read_config(None, ["framework=fl"])
read_config(sys.argv[1] + "/config.json")  # of a run folder: nothing is looked for
assert not {"mine_module", "mine_broken"} & set(sys.modules)
print(read_config(None, ["framework=twice"]).framework, METHODS["twice"].source, METHODS["twice"].timing.tau)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "site")], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("twice mine 1.0 True\n", "")


def test_built_in_names_are_those_of_the_registries() -> None:
    assert {*METHODS, *POLICIES, *MODELS, *READERS, "own"} == plugins.BUILT_IN


# --- rows


@pytest.mark.parametrize(("base", "like"), [("HSFL", "hsfl"), ("CopyPerClient", "hsfl"), ("SplitFedV1", "splitfed_v1")])
def test_a_row_is_like_that_of_the_framework_it_derives_from(tmp_path: Path, base: str, like: str) -> None:
    plugins.load(twice(tmp_path / "a.py", base))
    row, usual = METHODS["twice"], METHODS[like]
    assert (row.timing, row.own_cuts, row.copy_per_client) == (usual.timing, usual.own_cuts, usual.copy_per_client)
    assert (row.title, row.source) == ("twice", "a.py")
    assert row.style not in [other.style for other in METHODS.values() if other is not row]


def test_words_of_timing_and_a_timeline_of_ones_own(tmp_path: Path) -> None:
    plugins.load(twice(tmp_path / "a.py", more=', timing={"server": "own", "tau": False}, own_cuts=False'))
    row = METHODS["twice"]
    assert (row.timing.server, row.timing.tau, row.timing.step, row.own_cuts) == ("own", False, "free", False)
    slow = "\nfrom dataclasses import replace\nfrom hsfl.network.clock import timeline\n\n\ndef late(*a, **k):\n"
    slow += "    line = timeline('hsfl', *a, **k)\n    return replace(line, round_s=2 * line.round_s)\n"
    plugins.load(write(tmp_path / "b.py", slow + TWICE.format(base="HSFL", name="slow", more=", timeline=late")))
    (first, second) = (numbers(_ran(tmp_path / name, name))[0]["round_s"] for name in ("hsfl", "slow"))
    assert second == 2 * first


def _ran(folder: Path, framework: str) -> Path:
    loop.run(tiny(f"framework={framework}", "train.rounds=1"), folder)
    return folder


# --- data of any shape


def test_floats_are_taken_as_they_are_or_normalised() -> None:
    x = torch.randn(50, 3, 7, generator=torch.manual_seed(0)) * 4 + 2
    y = torch.zeros(50, dtype=torch.int64)
    assert torch.equal(Images(x, y, (), ()).floats(x), x)
    mean, std = tuple(x.mean((0, 2)).tolist()), tuple(x.std((0, 2), correction=0).tolist())
    found = Images(x, y, mean, std).floats(x)
    torch.testing.assert_close(found, (x - x.mean((0, 2))[:, None]) / x.std((0, 2), correction=0)[:, None])
    assert Images(x, y, mean, std).shape == (3, 7)


def test_a_data_set_is_normalised_by_its_training_samples(here: Path) -> None:
    plugins.load("my_data.py")
    found = load("points")
    assert (found.train_x.dtype, found.train_x.shape, found.classes) == (np.float32, (500, 4), ("red", "green", "blue"))
    np.testing.assert_allclose(found.mean, found.train_x.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found.std, found.train_x.std(axis=0), rtol=1e-5)


@pytest.mark.parametrize("framework", ["cl", "psl", "locfedmix_sl", "cpsl", "splitfed_v2"])
def test_vectors_train_in_every_family(here: Path, framework: str) -> None:
    plugins.load_all(["my_data.py", "my_model.py"])
    words = [
        f"framework={framework}",
        "data.name=points",
        "model.name=gelu_mlp",
        "fleet.num_clients=3",
        "train.rounds=2",
    ]
    summary = loop.run(
        read_config(None, [*words, "train.batch_size=16", "train.lr=0.02", "fleet.cuts=2"]), here / "run"
    )
    assert summary.test_accuracy is not None
    assert summary.test_accuracy > 0.8


# --- nothing is imported because a folder names it


def test_a_folder_never_runs_code(here: Path) -> None:
    hsfl(
        "run",
        *tiny_words("train.rounds=1"),
        "--plugin",
        "my_method.py",
        "--framework",
        "fedavgm",
        "--out",
        "a",
        "--quiet",
    )
    plugins.unload()
    mark = here / "ran"
    trap = write(here / "trap.py", f"open({str(mark)!r}, 'w')\n")
    config = json.loads((here / "a/config.json").read_text())
    write(here / "a/config.json", json.dumps(config | {"plugins": [str(trap)]}))
    kept = json.loads((here / "a/plugins.json").read_text())
    kept["plugins"][0]["file"] = str(trap)
    write(here / "a/plugins.json", json.dumps(kept))
    assert hsfl("report", "a").code == 0
    for words in (("evaluate", "a"), ("export", "a")):
        assert "give it again: --plugin" in refused(*words)
    for words in (("run", "--resume", "--out", "a"), ("run", "a/config.json", "--out", "b")):
        assert "names plugins, but nothing is loaded for a run folder" in refused(*words)
    assert RunFolder(here / "a").config().plugins == ()
    assert not mark.exists()
    assert not plugins.LOADED


def test_titles_and_styles_from_a_folder_are_words(tmp_path: Path) -> None:
    """Whatever somebody wrote there: no markup on the page or in Markdown, no mathematics in figures."""
    for name in ("fedavgm", "hsfl"):
        write_run(tmp_path, name, 0, records([0.1, 0.2], framework=name))
    path = tmp_path / "fedavgm/seed-0/plugins.json"
    evil = "</script><img src=x onerror=alert(1)> $\\frac{$ | x"
    row = {"title": evil, "style": ["url(javascript:x)", "o", "solid"], "pools_data": "yes"}
    write(path, json.dumps({"plugins": [{"file": "<b>.py", "sha256": "<i>"}], "framework": row}))
    assert hsfl("report", tmp_path).code == 0
    page = (tmp_path / "report.html").read_text()
    assert "<img src=x" not in page
    assert "<b>" not in page
    assert "javascript:x" not in page
    found = read_comparison(tmp_path)
    assert "<img" not in found.to_markdown()
    learning_figure(found).savefig(tmp_path / "a.png")
    write(
        path, json.dumps({"plugins": [], "framework": row | {"title": "Good", "style": ["#123456", "s", [0, [4, 2]]]}})
    )
    assert hsfl("report", tmp_path).code == 0
    assert '"style":{"colour":"#123456","shape":1,"dashes":"8 4"}' in (tmp_path / "report.html").read_text()
    assert "#123456" in {line.get_color() for line in learning_figure(read_comparison(tmp_path)).axes[0].get_lines()}
    write(path, "[1, 2]")
    assert hsfl("report", tmp_path).code == 0  # a name is all that is known


def test_another_hash_is_one_line(here: Path) -> None:
    words = ("--plugin", "my_method.py")
    hsfl("run", *tiny_words("train.rounds=1"), *words, "--framework", "fedavgm", "--out", "a", "--quiet")
    plugins.unload()
    write(here / "my_method.py", (here / "my_method.py").read_text() + "\n# another\n")
    for command in (("run", "--resume", "--out", "a"), ("evaluate", "a"), ("export", "a")):
        assert "was run with another my_method.py (sha256 " in refused(*command, *words)
    with pytest.raises(InputError, match=r"was run with another my_method\.py"):  # as compare and reproduce go on
        run_or_resume(tiny("framework=fedavgm", "train.rounds=1"), here / "a", loop.Observer())


# --- what is wrong


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "plugin my.py is no file; give the path of a Python file"),
        ("x = 1", "plugin my.py: it registers nothing; call hsfl.register_framework"),
        ("import hsfl\n\n1 / 0\n", "plugin my.py, line 3: ZeroDivisionError: division by zero; correct it there"),
        (TWICE.format(base="HSFL", name="a", more="") + "1 / 0", "ZeroDivisionError"),
        ("def f(:\n", "plugin my.py, line 1: SyntaxError"),
        ("import sys\nsys.exit(3)", "plugin my.py, line 2: SystemExit: 3"),
        ("import no_such_thing", "plugin my.py, line 1: ModuleNotFoundError: No module named 'no_such_thing'"),
        (TWICE.format(base="HSFL", name="fl", more=""), "framework 'fl' is there already, from hsfl; choose another name"),
        (TWICE.format(base="HSFL", name="a b", more=""), "framework 'a b' is no name; take letters"),
        ("import hsfl\n\n\nclass A:\n    def init(self): ...\n\n\nhsfl.register_framework('a', A)", "class A has no round; write round("),
        ("import hsfl\nhsfl.register_framework('a', 3)", "framework 'a' is 3; give a class"),
        (TWICE.format(base="HSFL", name="a", more=", timing={'turn': 'x'}"), "timing 'turn' is unknown; did you mean turns?"),
        (TWICE.format(base="HSFL", name="a", more=", timing={'step': 'jiont'}"), "step 'jiont' is unknown; did you mean joint?"),
        (TWICE.format(base="HSFL", name="a", more=", style=('red', 'o', 'solid')"), "give colour, marker and dashes"),
        (TWICE.format(base="HSFL", name="a", more=", options=dict"), "give a class that derives from pydantic.BaseModel"),
        ("import hsfl\nhsfl.register_policy('a', cycles='evn')", "rule for cycles 'evn' is unknown; did you mean even?"),
        ("import hsfl\nhsfl.register_policy('a', cuts='deepest')", "rule for cuts 'deepest' is unknown"),
        ("import hsfl\nhsfl.register_policy('a', power='even', allocate=print)", "leave one of them out"),
        ("import hsfl\nhsfl.register_model('a', 3)", "model 'a' is made by 3; give a function"),
        ("import hsfl\nhsfl.register_dataset('a', None)", "data set 'a' is read by None; give a function"),
    ],
)  # fmt: skip
def test_files_that_do_not_load(here: Path, text: str | None, message: str) -> None:
    if text is not None:
        write(here / "my.py", text)
    assert message in refused("run", *tiny_words(), "--plugin", "my.py", "--out", "run")
    assert not (here / "run").exists()
    assert not plugins.REGISTERED, "what failed leaves nothing behind"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("options.fedavgm.momentm=0.5", "unknown config field 'options.fedavgm.momentm'; did you mean 'options.fedavgm.momentum'?"),
        ("options.fedavg.momentum=0.5", "unknown config field 'options.fedavg'; did you mean 'options.fedavgm'?"),
        ("options.fedavgm.momentum=1.5", "config options.fedavgm.momentum is 1.5; give a number below 1"),
        ("options.fedavgm=3", "config options.fedavgm is 3 but it is a section; set its fields: options.fedavgm.momentum"),
        ("framework=fedavg", "framework 'fedavg' is unknown; did you mean fedavgm?"),
        ("plugins=3", 'config plugins is 3; give a list of Python files, such as ["my_method.py"]'),
    ],
)  # fmt: skip
def test_wrong_options_and_names(here: Path, change: str, message: str) -> None:
    words = (
        ("--plugin", "my_method.py", "--framework", "fedavgm")
        if "framework" not in change
        else ("--plugin", "my_method.py")
    )
    assert message in refused("run", *tiny_words(), "--set", change, *words, "--out", "run")


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        ("3", "policy 'a' gives a int; give a dict with server_hz and owner"),
        ("{'server_hz': s.main_hz}", "policy 'a' gives no owner"),
        ("{'server_hz': [1.0], 'owner': o}", "policy 'a' gives server_hz of shape (1,); give shape (3,)"),
        ("{'server_hz': h, 'owner': o[1:]}", "policy 'a' gives owner of shape (9,); give shape (10,)"),
        ("{'server_hz': h, 'owner': o + 1}", "policy 'a' gives owner 3; give a client, 0 to 2, or -1"),
        ("{'server_hz': 2 * h, 'owner': o}", "breaks a constraint by 100.00%: C2 and C3, the sum of server_hz within main_hz"),
        ("{'server_hz': -h, 'owner': o}", "breaks a constraint: server_hz is finite and not negative"),
        ("{'server_hz': h, 'owner': o, 'main_up_power_w': np.full((3, 10), 99.0)}", "C4, main_up_power_w of each client within max_power_w"),
        ("{'server_hz': h, 'owner': o, 'main_up_power_w': np.full((3, 10), 1e-3)}", "main_up_power_w on owned subchannels alone"),
        ("{'server_hz': 0 * h, 'owner': o}", "leaves client 0 without server: its round never ends"),
        ("{'server_hz': h, 'owner': 0 * o}", "without smashed: its round never ends; give everyone cycles"),
        ("{'server_hz': h, 'ownr': o}", "'ownr' is unknown; did you mean owner?"),
    ],
)  # fmt: skip
def test_a_policy_that_returns_nonsense(here: Path, gives: str, message: str) -> None:
    text = "import numpy as np\nimport hsfl\n\n\ndef a(s, cuts):\n    h, o = np.full(3, s.main_hz / 3), np.arange(10) % 3\n"
    write(here / "my.py", f"{text}    return {gives}\n\n\nhsfl.register_policy('a', allocate=a)\n")
    words = tiny_words("allocation.policy=a", "fleet.cuts=[1, 2, 3]")
    assert message in refused("run", *words, "--plugin", "my.py", "--out", "run")
    assert not (here / "run").exists()


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        ("[1, 2]", "policy 'a': cuts has 2 entries for 3 clients"),
        ("[1, 2, 9]", "policy 'a': cuts[2] is 9 but client 2 can take"),
        ("['x'] * 3", "policy 'a': cuts is ['x', 'x', 'x']; give one whole number for each client"),
    ],
)
def test_cuts_that_are_nonsense(here: Path, gives: str, message: str) -> None:
    write(here / "my.py", f"import hsfl\nhsfl.register_policy('a', cuts=lambda samples: {gives})\n")
    words = tiny_words(
        "allocation.policy=a", "fleet.cuts=planned", "allocation.samples=1", "allocation.plan_time_limit_s=0.1"
    )
    assert message in refused("run", *words, "--plugin", "my.py", "--out", "run")


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (
            "x, y[1:], x, y",
            "data set 'a': train_x has 20 samples but train_y 19 labels; give one label for each sample",
        ),
        ("np.where(x > 1, np.nan, x), y, x, y", "is nan; leave the sample out or put a number there"),
        ("x, y, x[:, 1:], y", "train_x holds float32 (3,) but test_x float32 (2,); make them alike"),
        ("x, y - 1, x, y", "train_y holds label -1; give whole numbers 0, 1, ..."),
        ("x, y, x, y, ('one',)", "classes are one; name two or more, each once"),
        ("x, y", "gives a tuple; give train_x, train_y, test_x, test_y"),
        ("[[1, 2], [3]], y, x, y", "train_x is a list, which is no array of numbers"),
        ("x[:, 0], y, x[:, 0], y", "train_x has shape (20,); give [samples, features] or more"),
    ],
)
def test_data_that_are_nonsense(here: Path, gives: str, message: str) -> None:
    text = "import numpy as np\nimport hsfl\n\nx = np.random.default_rng(0).standard_normal((20, 3))\ny = np.arange(20) % 2\n"
    write(here / "my.py", f"{text}hsfl.register_dataset('a', lambda request: ({gives}))\n")
    words = tiny_words("data.name=a", "data.image_size=null", "model.name=mlp", "fleet.cuts=1")
    assert message in refused("run", *words, "--plugin", "my.py", "--out", "run")


def test_images_alone_for_models_of_images(here: Path) -> None:
    words = ("--plugin", "my_data.py", *tiny_words("data.name=points", "data.image_size=null"))
    assert "input_shape is (4,); give cnn channels, height and width" in refused("run", *words, "--out", "run")
    assert "data.image_size is 8 but points holds numbers" in refused(
        "run", *words, "--set", "data.image_size=8", "--out", "run"
    )
    wrong = ("--set", "model.name=mlp", "--set", "model.input=[1, 8, 8]")
    assert "model.input resizes images but points holds numbers" in refused("run", *words, *wrong, "--out", "run")


# --- options in today's and in the older spelling


def test_older_spellings_are_the_same_config(tmp_path: Path) -> None:
    older = {"fl_needs_storage": True, "fsl_average": "server", "cpsl_clusters": 3, "locfedmix_alpha": 0.5}
    now = {
        "fl": {"needs_storage": True},
        "fsl": {"average": "server"},
        "cpsl": {"clusters": 3},
        "locfedmix_sl": {"alpha": 0.5},
    }
    assert parse_config({"options": older}) == parse_config({"options": now})
    assert read_config(None, ["options.fsl_average=server"]) == read_config(None, ["options.fsl.average=server"])
    with pytest.raises(InputError, match=r"options.fl_needs_storage and options.fl.needs_storage are one setting"):
        parse_config({"options": older | now})
    with pytest.raises(InputError, match=r"did you mean 'options.fsl.average'\?"):
        read_config(None, ["options.fsl_avrage=server"])
    with pytest.raises(InputError, match=r"config options.fsl.average is 'x'; give 'both' or 'server'"):
        parse_config({"options": {"fsl_average": "x"}})


def test_a_run_of_an_older_version_goes_on(tmp_path: Path) -> None:
    words = ["framework=fsl", "options.fsl.average=server"]
    loop.run(tiny(*words, "train.rounds=1"), tmp_path / "a")
    path = tmp_path / "a/config.json"
    config = json.loads(path.read_text())
    options = {
        f"{'locfedmix' if name == 'locfedmix_sl' else name}_{k}": v
        for name, part in config["options"].items()
        for k, v in part.items()
    }
    path.write_text(json.dumps(config | {"options": options}))
    assert "fsl_average" in path.read_text()
    loop.run(tiny(*words, "train.rounds=2"), tmp_path / "a", resume=True)
    loop.run(tiny(*words, "train.rounds=2"), tmp_path / "b")
    assert_same_run(tmp_path / "a", tmp_path / "b")


# --- from Python


def test_a_notebooks_cell_may_run_twice() -> None:
    for title in ("first", "second"):
        assert register_framework("mine", type("Mine", (HSFL,), {}), title=title).title == title
    assert METHODS["mine"].source == "Python"


def test_the_command_as_a_module_and_help_without_torch() -> None:
    code = "import runpy, sys\nsys.argv = ['hsfl', 'run', '--help']\ntry:\n    runpy.run_module('hsfl', run_name='__main__')\n"
    code += "except SystemExit:\n    assert not {'torch', 'hsfl.plugins'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "hsfl run my.toml --plugin my_method.py" in done.stdout
    assert (Path(loop.__file__).parents[1] / "py.typed").exists()
