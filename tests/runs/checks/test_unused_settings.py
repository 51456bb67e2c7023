"""No silent setting: what is given and does nothing is refused, and what is not refused does something."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import hsfl
from hsfl.config import RunConfig, flatten, read_config
from hsfl.errors import InputError
from hsfl.runs.checks.unused_settings import refuse_unused
from hsfl.runs.checks.unused_settings_rules import UNUSED
from hsfl.runs.prepare import prepare
from tests.naming import names, raises
from tests.small_runs import refused, tiny, tiny_words

MEASURED = ["network.kind=measured", "network.main_up_bps=1e6", "network.main_down_bps=1e6"]
OPTIMISED = ["allocation.policy=proposed"]
PLANNED = ["fleet.cuts=planned", "allocation.policy=proposed"]
SILENT = [  # a setting, what it stands beside, and what the reason names
    ("train.momentum=0.5", [], "train.optimizer=momentum"),
    ("train.step_rounds=3", [], "train.schedule=step"),
    ("network.main_up_bps=5e6", [], "network.kind=measured"),
    ("network.noise_w=1e-4", MEASURED, "network.kind=ofdma"),
    ("network.path_loss_exponent=2", [], "network.radius_m"),
    ("network.radius_m=50", ["network.positions_m=[[1,1],[2,2],[3,3]]"], "network.positions_m"),
    ("allocation.samples=5", ["allocation.policy=proposed"], "fleet.cuts=planned"),
    ("allocation.gap=0.01", [], "allocation.policy=proposed"),
    ("fleet.storage_bits=[1e8,1e9]", ["fleet.max_cut=5"], "fleet.max_cut"),
    ("fleet.storage=parameters", [], "fleet.storage_bits"),
    ("fleet.one_cut=2", [], "one cut for all"),
    ("train.tau_s=5", ["framework=sl"], "sl drops nobody"),
    ("train.drop_rate=0.5", ["framework=cl"], "no client can be away"),
    ("train.clients_per_round=2", ["framework=cl"], "no client can be away"),
    ("options.cpsl.clusters=3", [], "options of cpsl"),
    ("options.cpsl.clusters=3", [], "options of cpsl"),
    ("data.alpha=0.1", [], "dirichlet"),
    ("data.classes_per_client=3", ["data.partition=dirichlet"], "shards"),
    ("data.split=image", [], "ham10000"),
    ("model.stem=cifar", [], "stem"),
    ("model.memory_format=channels_last", ["model.name=mlp", "fleet.cuts=1"], "no convolutions"),
    ("model.norm=group", ["model.name=mlp", "fleet.cuts=1"], "mlp has no BatchNorm"),
    ("fleet.cuts=1", ["framework=fl"], "fl does not cut"),
    ("train={momentum=0.5}", [], "train.optimizer=momentum"),
    ("engine.workers=2", ["engine.name=inline"], "engine.name=auto or workers or ray"),
    ("train.choose=samples", [], "train.clients_per_round"),
    ("train.receivers=chosen", [], "train.clients_per_round"),
    ("network.cells=2", MEASURED, "network.kind=ofdma"),
    ("network.cells_m=[[0,0],[9,9]]", ["network.cells=2"], "network.radius_m"),
    ("network.main_m=[0,5]", ["network.cells=2", "network.radius_m=50"], "network.cells_m"),
    (
        "allocation.samples=5",
        ["allocation.policy=proposed", "fleet.cuts=planned", "network.cells=2"],
        "answer to prices",
    ),
    ("fleet.max_power_w=[1,2]", MEASURED, "network.kind=ofdma"),
    ("fleet.cpu_floor_hz=1e9", ["fleet.cpu_hz=[1e9,2e9]"], "fleet.cpu_hz"),
    ("fleet.cpu_hz=[1e9,2e9]", ["network.history=past.csv"], "network.history"),
    ("fleet.heterogeneity=0.5", [*MEASURED[:1], "network.history=past.csv"], "network.history"),
    ("fleet.cpu_hz=[1e9,2e9]", ["framework=cl"], "cl trains on the server"),
    ("network.speed_std=0.2", ["framework=cl"], "cl trains on the server"),
    ("network.edge_power_w=5", ["framework=cl"], "cl trains on the server"),
    ("network.main_hz=1e10", ["framework=fl"], "fl has no main server"),
    ("network.main_up_bps=2e6", ["framework=fl", *MEASURED, "network.edge_up_bps=1e6"], "fl has no main server"),
    ("fleet.max_cut=5", ["framework=fl"], "options.fl.needs_storage"),
    ("fleet.min_cut=2", ["framework=fl"], "fl does not cut"),
    ("fleet.cuts=planned", ["framework=splitfed_v1"], "fleet.one_cut"),
    ("fleet.cuts=fastest", ["framework=cpsl"], "fleet.one_cut"),
    ("fleet.cuts=2", ["framework=sl", "fleet.one_cut=3"], "fleet.one_cut"),
    ("allocation.policy=proposed", ["framework=sl"], "sl keeps the even allocation"),
    ("allocation.gap=0.1", ["framework=psl", "allocation.policy=proposed"], "psl keeps the even allocation"),
    ("allocation.gap=0.1", ["framework=cpsl", "allocation.policy=cpsl"], "CPSL deals subchannels"),
    ("allocation.time_limit_s=5", [*MEASURED, "allocation.policy=proposed"], "network.kind=ofdma"),
    ("allocation.patience=3", ["fleet.cuts=planned", "allocation.policy=scls"], "has a rule for cuts"),
    ("allocation.samples=3", ["fleet.cuts=planned", "allocation.policy=scls"], "looks at no rounds"),
    ("allocation.samples=3", [*OPTIMISED, "framework=splitfed_v1", "fleet.one_cut=2"], "fleet.one_cut=fastest"),
    (
        "allocation.samples=3",
        [*OPTIMISED, "framework=splitfed_v1"],
        "fleet.one_cut=fastest",
    ),  # which is the smallest cut
    ("allocation.samples=3", [*OPTIMISED, "framework=fl"], "no cuts are searched"),
    ("allocation.samples=3", ["framework=splitfed_v1", "fleet.cuts=auto"], "the even allocation"),
    ("train.proximal_mu=0.1", ["framework=sl"], "copy per client"),
    ("engine.name=workers", ["framework=sl"], "sl trains clients in turn"),
]
USED = [  # a setting and what it stands beside, where it looks idle and is not
    ("fleet.cuts=planned", ["framework=cpsl", "options.cpsl.cut=cluster"]),
    ("fleet.cuts=2", ["framework=sl"]),
    ("fleet.max_cut=5", ["framework=fl", "options.fl.needs_storage=true"]),
    ("network.main_up_bps=2e6", ["framework=fl", *MEASURED]),
    ("allocation.policy=own", ["framework=sl"]),
    ("allocation.policy=cpsl", ["framework=cpsl"]),
    ("allocation.samples=3", ["framework=cpsl", "allocation.policy=cpsl", "fleet.cuts=max_cut"]),
    ("allocation.samples=3", ["fleet.cuts=planned", "allocation.policy=cpsl"]),
    ("allocation.samples=3", ["framework=splitfed_v1", "fleet.cuts=auto", "allocation.policy=auto"]),
    ("allocation.samples=3", ["framework=fsl", *OPTIMISED, "fleet.one_cut=fastest"]),
    ("allocation.samples=3", ["framework=splitfed_v1", "fleet.cuts=auto", "allocation.policy=scls"]),
    ("network.edge_power_w=5", ["framework=fl"]),
]
ALWAYS = {  # settings that do something in every run, or where the data, the model or the engine refuse them by themselves
    *("framework", "seed", "device", "model.name", "model.input", "data.name", "data.dir"),
    *("data.partition", "data.min_samples", "data.limit", "data.limit_test", "data.image_size", "data.augment"),
    *("data.target_column", "data.feature_columns", "data.client_column", "data.client_file", "data.test_file"),
    *("data.test_fraction", "data.block", "data.tokenizer", "data.text_split", "data.normalise", "data.sha256"),
    *("fleet.num_clients", "fleet.file", "network.kind", "network.history", "network.sample_scale", "engine.threads"),
    *("network.full_batches", "train.rounds", "train.budget_s", "train.batch_size", "train.local_epochs"),
    *("train.optimizer", "train.lr", "train.weight_decay", "train.schedule", "train.eval_every", "train.task"),
    *("train.loss", "log.checkpoint_every", "log.model_every", "log.tensorboard"),
}


@pytest.mark.parametrize(
    ("setting", "beside", "reason"), SILENT, ids=[" ".join([setting, *beside]) for setting, beside, _ in SILENT]
)
def test_a_setting_without_effect_is_refused(setting: str, beside: list[str], reason: str) -> None:
    config = tiny(*beside, setting)
    with raises(InputError, setting.partition("=")[0], "no effect", reason):
        refuse_unused(None, [*beside, setting], [config])


def test_the_devices_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text('[[device]]\nname = "a"\ncpu = "1GHz"\npower = "1W"\nmax_cut = 2\n')
    words = tiny_words("fleet.num_clients=1", "fleet.cuts=1", f"fleet.file={tmp_path / 'fleet.toml'}")
    for setting in ("fleet.cpu_hz=[1e9,2e9]", "fleet.flops_per_cycle=4"):
        said = refused("run", *words, "--set", setting, "--out", tmp_path / "run")
        assert f"{setting.split('=')[0]} = " in said
        names(said, "no effect", "fleet.file")


def test_storage_beside_a_fleet_file(tmp_path: Path) -> None:
    device = '[[device]]\nname = "a"\ncpu = "1GHz"\npower = "1W"\n'
    words = [f"fleet.file={tmp_path / 'fleet.toml'}", "fleet.storage=parameters"]
    (tmp_path / "fleet.toml").write_text(device + 'memory = "1GiB"\n')
    refuse_unused(None, words, [read_config(None, words)])
    (tmp_path / "fleet.toml").write_text(device)
    with raises(InputError, "fleet.storage = 'parameters'", "no effect"):
        refuse_unused(None, words, [read_config(None, words)])


@pytest.mark.parametrize(("setting", "beside"), USED, ids=[" ".join([setting, *beside]) for setting, beside in USED])
def test_a_setting_that_is_used_is_not_refused(setting: str, beside: list[str]) -> None:
    refuse_unused(None, [setting], [tiny(*beside, setting)])


@pytest.mark.parametrize("framework", ["fl", "hsfl"])
def test_measured_links_have_a_way_that_no_message_forbids(framework: str) -> None:
    """FL has no main server: rates to it are refused beside those to the edge server, and then not asked for."""
    edge = ["network.kind=measured", "network.edge_up_bps=1e6", "network.edge_down_bps=2e6"]
    four = [*edge, "network.main_up_bps=3e6", "network.main_down_bps=4e6"]
    if framework == "fl":
        with raises(
            InputError,
            "network.main_down_bps =",
            "no main server",
            "leave it out",
            "nor has network.main_up_bps",
            "are taken for the edge",
        ):
            refuse_unused(None, four, [tiny("framework=fl", *four)])
    config = tiny(f"framework={framework}", *edge)
    refuse_unused(None, edge, [config])
    rates = prepare(config).world.links.rates
    assert rates.main_up_bps.tolist() == rates.edge_up_bps.tolist() == [1e6] * 3
    assert rates.main_down_bps.tolist() == rates.edge_down_bps.tolist() == [2e6] * 3


def test_measured_links_need_a_rate_to_one_server() -> None:
    with raises(InputError, "network.main_down_bps", "not given"):
        prepare(tiny("network.kind=measured", "network.edge_up_bps=1e6"))


def test_every_setting_has_a_rule_or_always_does_something() -> None:
    """A new setting belongs into the table, or into ALWAYS once somebody has thought about it."""
    fields = {name for name in flatten(RunConfig().model_dump()) if not name.startswith("options.")}
    assert UNUSED.keys() | ALWAYS == fields
    assert not UNUSED.keys() & ALWAYS


def test_the_table_stands_in_the_order_of_the_config() -> None:
    assert list(UNUSED) == [name for name in flatten(RunConfig().model_dump()) if name in UNUSED]


@pytest.mark.parametrize(("field", "word"), [("fleet.cuts", "max_cut"), ("fleet.one_cut", "fastest")])
def test_the_way_out_of_an_impossible_cut_is_one(field: str, word: str) -> None:
    framework = "framework=sl" if field == "fleet.one_cut" else "framework=hsfl"
    with raises(InputError, "5 units", "choose up to 5", f"set {field}={word}"):
        refuse_unused(None, [], [tiny(framework, f"{field}=50")])
    refuse_unused(None, [], [tiny(framework, f"{field}={word}")])


def test_a_framework_beside_contenders(tmp_path: Path) -> None:
    said = refused("compare", *tiny_words("framework=sl"), "-f", "hsfl", "-f", "fl", "--out", tmp_path / "c")
    names(said, "framework = 'sl'", "no effect", "hsfl, fl", "add -f sl")


def test_settings_of_what_a_plan_does_not_look_at(tmp_path: Path) -> None:
    """They are refused before the table is looked for."""
    words = ["plan", "--cost", tmp_path / "cost.json"]
    names(refused(*words, "--set", "model.name=cnn"), "model.name", "no effect", "--cost")
    said = refused(*words, "--samples-per-client", 10, "--set", "data.limit=60")
    names(said, "data.limit", "no effect", "--samples-per-client")


def test_what_a_preset_sets_is_never_refused_and_a_word_may_overrule_a_file(tmp_path: Path) -> None:
    words = ["data.partition=iid"]  # the demo's alpha then does nothing, and nobody typed it
    refuse_unused("demo", words, [read_config("demo", words)])
    (tmp_path / "my.toml").write_text('[data]\npartition = "dirichlet"\nalpha = 0.1\n')
    refuse_unused(tmp_path / "my.toml", words, [read_config(tmp_path / "my.toml", words)])
    (tmp_path / "my.toml").write_text("[data]\nalpha = 0.1\n")
    with raises(InputError, "data.alpha = 0.1", "no effect"):
        refuse_unused(tmp_path / "my.toml", [], [read_config(tmp_path / "my.toml")])
    words = ["data.partition=dirichlet"]  # the file alone would not do, but with this it does
    refuse_unused(tmp_path / "my.toml", words, [read_config(tmp_path / "my.toml", words)])


def test_cuts_in_a_file_serve_runs_alone(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text('framework = "fl"\n[fleet]\ncuts = 1\n[allocation]\nsamples = 3\n')
    config = read_config(tmp_path / "my.toml")
    refuse_unused(tmp_path / "my.toml", [], [config], planning=True)  # the plan says what it leaves aside
    with raises(InputError, "fleet.cuts = 1", "no effect", "fl does not cut"):
        refuse_unused(tmp_path / "my.toml", [], [config])


def test_a_setting_that_one_contender_uses_is_not_refused(tmp_path: Path) -> None:
    words = ["allocation.samples=2"]
    plain, planned = tiny(*words), tiny(*words, "allocation.policy=proposed", "fleet.cuts=planned")
    refuse_unused(None, words, [plain, planned])
    with raises(InputError, "allocation.samples = 2", "no effect"):
        refuse_unused(None, words, [plain])
    refuse_unused(None, words, [plain], planning=True)
    names(
        refused("compare", *tiny_words("train.momentum=0.1"), "-f", "hsfl", "--out", tmp_path / "c"), "train.momentum"
    )
    names(
        refused("sweep", "train.momentum=0.1,0.2", *tiny_words(), "--out", tmp_path / "s"),
        "train.momentum",
        "no effect",
    )
    names(
        refused("sweep", "train.momentum=0.9,0.1", *tiny_words(), "--out", tmp_path / "s"),
        "train.momentum",
        "no effect",
    )  # a default
    own = refused("compare", *tiny_words(), "-f", "fl", "-f", "hsfl,train.momentum=0.5", "--out", tmp_path / "c")
    assert own.startswith("error: train.momentum = 0.5 has no effect")


def test_a_plan_of_cells_samples_rounds_and_searches_no_cuts() -> None:
    words = ["allocation.samples=3", "allocation.patience=3"]
    config = tiny("network.cells=2", *words)
    refuse_unused(None, words[:1], [config], planning=True)
    with raises(InputError, "allocation.patience = 3", "no effect", "prices"):
        refuse_unused(None, words, [config], planning=True)


def test_a_policy_that_chooses_cuts_beside_cuts_that_are_given() -> None:
    with raises(InputError, "allocation.policy=scls", "fleet.cuts is (1, 2, 5)"):
        prepare(tiny("allocation.policy=scls"))


@pytest.mark.parametrize("setting", ["train.proximal_mu=0.1", "train.choose=samples", "train.receivers=chosen"])
def test_what_would_pass_for_a_part_of_the_experiment_is_refused_wherever_it_was_given(setting: str) -> None:
    """A run folder, a preset, or one contender among others may have given it; nobody typed it for this run."""
    name = setting.partition("=")[0]
    with raises(InputError, f"{name} =", "no effect", "sl"):
        prepare(tiny("framework=sl", "fleet.cuts=1", "train.clients_per_round=2", setting))


def test_from_python() -> None:
    with raises(InputError, "train.momentum = 0.5", "no effect"):
        hsfl.run("demo", train={"momentum": 0.5})
    with raises(InputError, "data.alpha = 0.", "no effect"):
        hsfl.plan("demo", ["data.alpha=0.3", "data.partition=iid"])


@pytest.mark.parametrize(
    "words",
    [
        ["run", "demo", "--set", "train.ronds=3"],
        ["run", "demo", "--framework", "hfsl"],
        ["run", "demo", "--set", "model.name=resnet19"],
        ["run", "demo", "--set", "data.name=minst"],
        ["compare", "demo", "--set", "train.momentum=0.1"],
        ["sweep", "demo", "train.ronds=1,2"],
        ["plan", "demo", "--set", "fleet.cutz=3"],
        ["run", "demo", "--set", "allocation.policy=propsed"],
        ["compare", "demo", "-f", "hsfl,allocation.policy=scsl"],
        ["run", "demo", "--set", "fleet.cuts=11"],
        ["run", "demo", "--set", "fleet.cuts=[1,2]"],
        ["run", "demo", "--framework", "sl", "--set", "fleet.one_cut=11"],
        ["run", "demo", "--set", "fleet.file=no-such-fleet.toml"],
    ],
)
def test_a_typo_waits_for_no_torch_and_no_numba(words: list[str]) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['hsfl', *{words!r}]\n"
        "try:\n    runpy.run_module('hsfl', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert end.code == 2, end.code\n    assert not {'torch', 'numba', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("error: ")


def test_a_sweep_over_the_default_is_no_excuse_and_contenders_answer_for_their_own_settings(tmp_path: Path) -> None:
    said = refused(
        "sweep", "data.alpha=0.1,0.5", *tiny_words(), "--plan-only", "--out", tmp_path / "s"
    )  # 0.5 is the default
    names(said, "data.alpha = 0.1", "no effect")
    for label in ("hsfl,train.momentum=0.5", "hsfl,options.cpsl.clusters=3"):
        setting = label.removeprefix("hsfl,").replace("=", " = ")
        words = ["-f", label, "-f", "cpsl", "--out", tmp_path / "c"]
        names(refused("compare", *tiny_words(), *words), setting, "no effect")
        names(refused("sweep", "train.lr=0.1,0.2", *tiny_words(), *words), setting, "no effect")
        with raises(InputError, setting, "no effect"):
            hsfl.compare(tiny(), [label, "cpsl"], tmp_path / "c")


def test_an_option_of_another_framework_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text("[options.cpsl]\nclusters = 3\n")
    with raises(InputError, "options.cpsl.clusters = 3", "no effect"):
        refuse_unused(tmp_path / "my.toml", [], [read_config(tmp_path / "my.toml")])


@pytest.mark.parametrize("setting", ["model.norm=group", "model.dropout=0.3", "model.init_weights=w.safetensors"])
def test_a_model_that_was_given_takes_no_settings_of_models(setting: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with raises(InputError, "no effect", "given itself"):
        hsfl.run(tiny(), tmp_path / "run", [setting, "fleet.cuts=1"], model=model)
