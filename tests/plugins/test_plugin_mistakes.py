"""What is wrong with a plugin is told in one line."""

from pathlib import Path

import pytest

from hsfl import plugins
from tests.naming import names
from tests.plugins.files import TWICE, write
from tests.small_runs import hsfl, numbers, refused, tiny_words


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (None, ("no file", "path of a Python file")),
        ("x = 1", ("registers nothing", "call hsfl.register_framework")),
        ("import hsfl\n\n1 / 0\n", ("line 3:", "ZeroDivisionError", "correct it")),
        (TWICE.format(base="HSFL", name="a", more="") + "1 / 0", ("line 11:", "ZeroDivisionError")),
        ("def f(:\n", ("line 1:", "SyntaxError")),
        ("import sys\nsys.exit(3)", ("line 2:", "SystemExit: 3")),
        ("import no_such_thing", ("line 1:", "ModuleNotFoundError", "'no_such_thing'")),
        (TWICE.format(base="HSFL", name="fl", more=""), ("framework 'fl'", "already", "another name")),
        (TWICE.format(base="HSFL", name="a b", more=""), ("framework 'a b'", "no name", "letters")),
        ("import hsfl\n\n\nclass A:\n    def init(self): ...\n\n\nhsfl.register_framework('a', A)", ("class A", "no round", "write round(")),
        ("import hsfl\nhsfl.register_framework('a', 3)", ("framework 'a' is 3", "give a class")),
        (TWICE.format(base="HSFL", name="a", more=", timing={'turn': 'x'}"), ("timing 'turn'", "did you mean turns?")),
        (TWICE.format(base="HSFL", name="a", more=", timing={'step': 'jiont'}"), ("step 'jiont'", "did you mean joint?")),
        (TWICE.format(base="HSFL", name="a", more=", style=('red', 'o', 'solid')"), ("style ('red'", "colour, marker and dashes")),
        (TWICE.format(base="HSFL", name="a", more=", options=dict"), ("options <class 'dict'>", "derives from pydantic.BaseModel")),
        ("import hsfl\nhsfl.register_policy('a', cycles='evn')", ("rule for cycles 'evn'", "did you mean even?")),
        ("import hsfl\nhsfl.register_policy('a', cuts='deepest')", ("rule for cuts 'deepest'", "choose one of")),
        ("import hsfl\nhsfl.register_policy('a', power='even', allocate=print)", ("rules for a round", "leave one of them out")),
        ("import hsfl\nhsfl.register_model('a', 3)", ("model 'a'", "made by 3", "give a function")),
        ("import hsfl\nhsfl.register_dataset('a', None)", ("data set 'a'", "read by None", "give a function")),
        ("import hsfl\nhsfl.register_dataset('a', lambda: 1)", ("data set 'a'", "called with request", "too many", "change its arguments")),
        ("import hsfl\nhsfl.register_model('a', lambda shape: 1)", ("model 'a'", "with input_shape, num_classes", "too many")),
        ("import hsfl\nhsfl.register_policy('a', allocate=lambda s: 1)", ("policy 'a'", "allocate", "with scenario, cuts", "too many")),
        ("import hsfl\nfrom pydantic import BaseModel\nhsfl.register_policy('a', cuts=lambda s: 1, options=BaseModel)", ("with samples, options=", "unexpected keyword argument 'options'")),
        (TWICE.format(base="HSFL", name="a", more=", timeline=3"), ("timeline 3", "give a function", "leave it out")),
        (TWICE.format(base="HSFL", name="a", more=", timeline=lambda phases: 1"), ("timeline is called", "phases, num_batches, tau_s, started=")),
        (TWICE.format(base="HSFL", name="a", more=", timing='joint'"), ("timing 'joint'", "give a dict")),
        (TWICE.format(base="HSFL", name="a", more=", own_policy=3"), ("own_policy 3", "name of a policy")),
        (TWICE.format(base="HSFL", name="a", more="").replace("pass", "def round(self, state): ..."), ("round is called", "self, state, kept, round_index", "too many")),
    ],
)  # fmt: skip
def test_files_that_do_not_load(here: Path, text: str | None, parts: tuple[str, ...]) -> None:
    if text is not None:
        write(here / "my.py", text)
    names(refused("run", *tiny_words(), "--plugin", "my.py", "--out", "run"), "plugin my.py", *parts)
    assert not (here / "run").exists()
    assert not plugins.REGISTERED, "what failed leaves nothing behind"


def test_a_config_is_no_plugin(here: Path) -> None:
    write(here / "my.toml", "[model]\nname = 'cnn'\n")
    said = refused("run", *tiny_words(), "--plugin", here / "my.toml", "--out", here / "run")
    names(said, "my.toml", ".py file")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("options.fedavgm.momentm=0.5", ("'options.fedavgm.momentm'", "did you mean 'options.fedavgm.momentum'?")),
        ("options.fedavg.momentum=0.5", ("'options.fedavg'", "did you mean 'options.fedavgm'?")),
        ("options.fedavgm.momentum=1.5", ("options.fedavgm.momentum is 1.5", "number below 1")),
        ("options.fedavgm=3", ("options.fedavgm is 3", "a section", "options.fedavgm.momentum")),
        ("framework=fedavg", ("framework 'fedavg'", "did you mean fedavgm?")),
        ("plugins=3", ("plugins is 3", "list of Python files")),
    ],
)  # fmt: skip
def test_wrong_options_and_names(here: Path, change: str, parts: tuple[str, ...]) -> None:
    words = (
        ("--plugin", "my_method.py", "--framework", "fedavgm")
        if "framework" not in change
        else ("--plugin", "my_method.py")
    )
    names(refused("run", *tiny_words(), "--set", change, *words, "--out", "run"), *parts)


@pytest.mark.parametrize(
    ("gives", "parts"),
    [
        ("3", ("policy 'a'", "a int", "dict with server_hz")),
        ("{'server_hz': s.main_hz}", ("policy 'a'", "no owner")),
        ("{'server_hz': [1.0], 'owner': o}", ("policy 'a'", "server_hz of shape (1,)", "give shape (3,)")),
        ("{'server_hz': h, 'owner': o[1:]}", ("policy 'a'", "owner of shape (9,)", "give shape (10,)")),
        ("{'server_hz': h, 'owner': o + 1}", ("policy 'a'", "owner 3", "0 to 2", "-1")),
        ("{'server_hz': 2 * h, 'owner': o}", ("by 100.00%", "C2 and C3", "server_hz within main_hz")),
        ("{'server_hz': -h, 'owner': o}", ("breaks a constraint", "server_hz is finite", "not negative")),
        ("{'server_hz': h, 'owner': o, 'main_up_power_w': np.full((3, 10), 99.0)}", ("C4", "main_up_power_w of each client", "within max_power_w")),
        ("{'server_hz': h, 'owner': o, 'main_up_power_w': np.full((3, 10), 1e-3)}", ("main_up_power_w", "owned subchannels alone")),
        ("{'server_hz': 0 * h, 'owner': o}", ("client 0", "without server", "round never ends")),
        ("{'server_hz': h, 'owner': 0 * o}", ("without smashed", "round never ends", "give everyone cycles")),
        ("{'server_hz': h, 'ownr': o}", ("'ownr'", "did you mean owner?")),
        ("{'server_hz': 1j * h, 'owner': o}", ("policy 'a'", "server_hz", "no array of numbers", "shape (3,)")),
        ("1 / 0", ("my.py, line 7", "ZeroDivisionError", "correct it")),
        ("exit(0)", ("my.py, line 7", "SystemExit: 0", "correct it")),
    ],
)  # fmt: skip
def test_a_policy_that_returns_nonsense(here: Path, gives: str, parts: tuple[str, ...]) -> None:
    text = "import numpy as np\nimport hsfl\n\n\ndef a(s, cuts):\n    h, o = np.full(3, s.main_hz / 3), np.arange(10) % 3\n"
    write(here / "my.py", f"{text}    return {gives}\n\n\nhsfl.register_policy('a', allocate=a)\n")
    words = tiny_words("allocation.policy=a", "fleet.cuts=[1, 2, 3]")
    names(refused("run", *words, "--plugin", "my.py", "--out", "run"), *parts)
    assert not (here / "run").exists()


@pytest.mark.parametrize(
    ("gives", "parts"),
    [
        ("[1, 2]", ("cuts has 2 entries", "3 clients")),
        ("[1, 2, 9]", ("cuts[2] is 9", "client 2 can take")),
        ("['x'] * 3", ("['x', 'x', 'x']", "one whole number")),
    ],
)
def test_cuts_that_are_nonsense(here: Path, gives: str, parts: tuple[str, ...]) -> None:
    write(here / "my.py", f"import hsfl\nhsfl.register_policy('a', cuts=lambda samples: {gives})\n")
    words = tiny_words("allocation.policy=a", "fleet.cuts=planned", "allocation.samples=1")
    names(refused("run", *words, "--plugin", "my.py", "--out", "run"), "policy 'a'", *parts)


@pytest.mark.parametrize(
    ("gives", "parts"),
    [
        ("x, y[1:], x, y", ("data set 'a'", "20 samples", "19 labels", "one label for each")),
        ("np.where(x > 1, np.nan, x), y, x, y", ("is nan", "leave the sample out")),
        ("x, y, x[:, 1:], y", ("train_x holds float32 (3,)", "test_x float32 (2,)", "make them alike")),
        ("x, y - 1, x, y", ("train_y", "label -1", "whole numbers")),
        ("x, y, x, y, ('one',)", ("classes are one", "two or more")),
        ("x, y", ("gives a tuple", "train_x, train_y, test_x, test_y")),
        ("[[1, 2], [3]], y, x, y", ("train_x is a list", "no array of numbers")),
        ("x[:, 0], y, x[:, 0], y", ("train_x has shape (20,)", "[samples, features]")),
    ],
)
def test_data_that_are_nonsense(here: Path, gives: str, parts: tuple[str, ...]) -> None:
    text = "import numpy as np\nimport hsfl\n\nx = np.random.default_rng(0).standard_normal((20, 3))\ny = np.arange(20) % 2\n"
    write(here / "my.py", f"{text}hsfl.register_dataset('a', lambda request: ({gives}))\n")
    words = tiny_words("data.name=a", "data.image_size=null", "model.name=mlp", "fleet.cuts=1")
    names(refused("run", *words, "--plugin", "my.py", "--out", "run"), *parts)


def test_images_alone_for_models_of_images(here: Path) -> None:
    words = ("--plugin", "my_data.py", *tiny_words("data.name=points", "data.image_size=null"))
    names(refused("run", *words, "--out", "run"), "input_shape is (4,)", "channels, height and width")
    names(refused("run", *words, "--set", "data.image_size=8", "--out", "run"), "data.image_size is 8", "points")
    wrong = ("--set", "model.name=mlp", "--set", "model.input=[1, 8, 8]", "--set", "fleet.cuts=2")
    names(refused("run", *words, *wrong, "--out", "run"), "model.input", "points")


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("def round(self, state, kept, i): return 1 / 0", ("my.py, line 7", "ZeroDivisionError", "correct it")),
        ("def round(self, state, kept, i): raise SystemExit", ("my.py, line 7", "SystemExit", "correct it")),
        ("def init(self): raise OSError('no such thing')", ("my.py, line 7", "OSError", "no such thing", "correct it")),
        ("def round(self, state, kept, i): return state", ("Twice.round gives a State", "and a RoundResult")),
        ("def round(self, state, kept, i): pass", ("Twice.round gives a NoneType", "and a RoundResult")),
        ("def models(self, state): return []", ("Twice.models gives no model", "one at least")),
        ("def models(self, state): pass", ("Twice.models gives a NoneType", "list of whole models")),
        ("def models(self, state): return [3]", ("Twice.models gives a int", "among the models")),
        ("def models(self, state): return [state.units['main']]", ("units 1 to 5", "join the holders' units")),
    ],
)  # fmt: skip
def test_a_framework_that_fails_while_it_trains(here: Path, body: str, parts: tuple[str, ...]) -> None:
    write(here / "my.py", TWICE.format(base="HSFL", name="a", more="").replace("pass", body))
    words = ("--framework", "a", "--plugin", "my.py", "--quiet", "--out", "run")
    names(refused("run", *tiny_words("train.rounds=1", "model.norm=none", "network.sample_scale=24"), *words), *parts)


@pytest.mark.parametrize(
    ("gives", "parts"),
    [
        ("None", ("timeline gives a NoneType", "hsfl.network.clock.Timeline")),
        (
            "replace(timeline('hsfl', *a, **k), round_s=-1.0)",
            ("round_s -1", "kept (3,)", "end_s (9, 3)", "give 0"),
        ),
    ],
)
def test_a_timeline_that_is_nonsense(here: Path, gives: str, parts: tuple[str, ...]) -> None:
    text = "from dataclasses import replace\nfrom hsfl.network.clock import timeline\n"
    more = f", timeline=lambda *a, **k: {gives}"
    write(here / "my.py", text + TWICE.format(base="HSFL", name="a", more=more))
    said = refused("run", *tiny_words(), "--framework", "a", "--plugin", "my.py", "--out", "run")
    names(said, "framework 'a'", *parts)


def test_a_framework_that_fails_in_a_worker(here: Path) -> None:
    """A model's error crosses the border of a process as one line, too."""
    model = "import hsfl\nfrom torch import nn\n\n\nclass Fails(nn.Module):\n    def forward(self, x):\n"
    model += "        return 1 / 0 if x.requires_grad and not x.is_meta else x\n\n\n"
    model += "hsfl.register_model('a', lambda s, n: [nn.Flatten(), nn.Linear(64, n), Fails()])\n"
    write(here / "my.py", model)
    words = tiny_words(
        "model.name=a",
        "fleet.cuts=1",
        "engine.name=workers",
        "engine.workers=1",
        "train.rounds=1",
        "network.sample_scale=24",
    )
    said = refused("run", *words, "--plugin", "my.py", "--quiet", "--out", "run")
    names(said, "plugin my.py, line 7", "ZeroDivisionError", "correct it")


def test_what_a_policy_writes_into_its_scenario_changes_no_number(here: Path) -> None:
    text = "import numpy as np\nimport hsfl\n\n\ndef {0}(s, cuts):\n    {1}\n    return dict(server_hz=np.full(3, s.main_hz / 3), "
    text += "owner=np.arange(10) % 3)\n\n\nhsfl.register_policy('{0}', allocate={0})\n"
    write(here / "my.py", text.format("a", "s.main_gain[:] = s.edge_gain[:] = 1e9") + text.format("b", "pass"))
    for name in "ab":
        words = tiny_words(f"allocation.policy={name}", "train.rounds=1")
        hsfl("run", *words, "--plugin", "my.py", "--quiet", "--out", name)
    first, second = (numbers(here / name)[0]["round_s"] for name in "ab")
    assert first == second


def test_a_plan_takes_the_samples_of_a_data_set_of_ones_own(here: Path) -> None:
    words = ["data.name=points", "model.name=gelu_mlp", "fleet.num_clients=4", "allocation.samples=1"]
    changes = [word for change in words for word in ("--set", change)]
    hsfl("plan", *changes, "--plugin", "my_data.py", "--plugin", "my_model.py", "--out", "plan")
    assert "125 samples" in (here / "plan/plan.json").read_text()
