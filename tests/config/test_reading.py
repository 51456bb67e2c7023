import json

import pytest

from hsfl.config import RunConfig, parse_config, presets, read_config
from hsfl.errors import InputError
from tests.naming import names, raises


def complaint(*changes: str) -> str:
    with pytest.raises(InputError) as caught:
        read_config(None, changes)
    message = str(caught.value)
    assert "\n" not in message
    assert "pydantic" not in message
    return message


@pytest.mark.parametrize("name", ["demo", "paper-mnist", "paper-cifar10", "paper-ham10000"])
def test_presets_parse(name):
    assert name in presets()
    config = read_config(name)
    assert config.framework == "hsfl"
    assert config.model.name == "resnet18"


def test_no_source_gives_the_defaults():
    assert read_config() == RunConfig()


def test_a_config_is_frozen():
    with pytest.raises(ValueError):
        read_config().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("word", ["train.tau_s=true", "fleet.num_clients=true", "network.main_up_bps=false"])
def test_true_is_no_number(word):
    field, _, value = word.partition("=")
    with raises(InputError, f"{field} is {value.title()}", "give "):
        read_config(None, [word])


def test_a_byte_order_mark_is_no_matter(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfseed = 3\n")
    assert read_config(str(tmp_path / "a.toml")).seed == 3


def test_toml_and_json_files_say_the_same(tmp_path):
    toml, as_json = tmp_path / "a.toml", tmp_path / "a.json"
    toml.write_text('seed = 4\n[data]\nname = "digits"\n[fleet]\nnum_clients = 2\ncuts = [1, 3]\n')
    as_json.write_text('{"seed": 4, "data": {"name": "digits"}, "fleet": {"num_clients": 2, "cuts": [1, 3]}}')
    assert read_config(toml) == read_config(as_json)
    assert read_config(toml).fleet.cuts == (1, 3)


def test_what_a_config_writes_it_reads():
    config = read_config("demo", ["model.input=[1, 28, 28]", "data.limit=7"])
    assert parse_config(json.loads(config.model_dump_json())) == config


@pytest.mark.parametrize(
    ("change", "section", "field", "value"),
    [
        ("train.rounds=20", "train", "rounds", 20),
        ("train.lr = 1e-2 ", "train", "lr", 0.01),
        ("fleet.cuts=[3, 4]", "fleet", "cuts", (3, 4)),
        ("fleet.cuts=3", "fleet", "cuts", 3),
        ("fleet.cuts=max_cut", "fleet", "cuts", "max_cut"),
        ("log.tensorboard=true", "log", "tensorboard", True),
        ("data.limit=null", "data", "limit", None),
        ("data.augment=none", "data", "augment", "none"),
        ("data.name=folder:/some where/x", "data", "name", "folder:/some where/x"),
        ('data.dir="quoted"', "data", "dir", "quoted"),
        ("data.dir=a=b", "data", "dir", "a=b"),
        ("data.dir=2024-01-01", "data", "dir", "2024-01-01"),
    ],
)
def test_set(change, section, field, value):
    assert getattr(getattr(read_config(None, [change]), section), field) == value


def test_set_reaches_the_top_and_overrides_the_file():
    config = read_config("demo", ["seed=9", "train.rounds=5", "train.rounds=6"])
    assert (config.seed, config.train.rounds, config.train.batch_size) == (9, 6, 32)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("sed=3", ("'sed'", "did you mean 'seed'?")),
        ("trian.rounds=3", ("'trian'", "did you mean 'train'?")),
        ("train.ruonds=3", ("'train.ruonds'", "did you mean 'train.rounds'?")),
        ("train.epochs=3", ("'train.epochs'", "did you mean 'train.local_epochs'?")),
        ("rounds=3", ("'rounds'", "did you mean 'train.rounds'?")),  # right name, no section
        ("model.lr=3", ("'model.lr'", "did you mean 'train.lr'?")),  # right name, wrong section
        ("log.xyzzy=3", ("'log.xyzzy'", "known here", "log.checkpoint_every, log.model_every")),
        ("xyzzy=3", ("'xyzzy'", "known here", "framework, seed")),
        (".x=3", ("field ''",)),
    ],
)
def test_unknown_fields_suggest_the_nearest(change, parts):
    names(complaint(change), "unknown config field", *parts)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("train.rounds=many", ("train.rounds is 'many'", "whole number")),
        ("train.rounds=2.5", ("train.rounds is 2.5", "whole number")),
        ("train.rounds=null", ("train.rounds is None", "whole number")),
        ("data.limit=none", ("data.limit is 'none'", "whole number or null")),
        ("train.rounds=0", ("train.rounds is 0", "at least 1")),
        ("train.rounds.x=0", ("train.rounds is {'x': 0}", "whole number")),
        ("train.lr=fast", ("train.lr is 'fast'", "give a number")),
        ("train.lr=0", ("train.lr is 0", "above 0")),
        ("train.lr=nan", ("train.lr is nan", "finite number")),
        ("train.lr=inf", ("train.lr is inf", "finite number")),
        ("train.drop_rate=1.5", ("train.drop_rate is 1.5", "at most 1")),
        ("model.dropout=1", ("model.dropout is 1", "below 1")),
        ("seed=-1", ("seed is -1", "at least 0")),
        ("device=gpu", ("device is 'gpu'", "'cpu', 'cuda' or 'mps'")),
        ("data.partition=skewed", ("data.partition is 'skewed'", "'iid', 'dirichlet', 'shards'")),
        ("log.tensorboard=maybe", ("log.tensorboard is 'maybe'", "true or false")),
        ("framework=3", ("framework is 3", "give text")),
        ("fleet.cuts=foo", ("fleet.cuts is 'foo'", "one cut for all (3)", "([3, 4, 5])")),
        ('fleet.cuts=[1,"a"]', ("fleet.cuts is [1, 'a']", "one cut for all", "one for each")),
        ("fleet.cuts=2.5", ("fleet.cuts is 2.5", "one cut for all")),
        ("fleet.cuts=nan", ("fleet.cuts is nan", "one cut for all")),
        ("fleet.max_cut=deep", ("fleet.max_cut is 'deep'", "one for all (5)", "one for each")),
        ("model.input=[1,28]", ("model.input is [1, 28]", "three numbers", "channels, height and width")),
        ("model.input=28", ("model.input is 28", "three numbers")),
        ("model.input=[1,0,28]", ("model.input is [1, 0, 28]", "three numbers")),
        ("train=5", ("train is 5", "a section", "train.rounds, train.budget_s")),
        ("nonsense", ("--set 'nonsense'", "section.field=value")),
        ("=3", ("--set '=3'", "section.field=value")),
    ],
)
def test_wrong_values_are_named_in_words(change, parts):
    names(complaint(change), *parts)


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ("fleet.cuts=planed", "did you mean planned?"),
        ("fleet.one_cut=Fastest", "did you mean fastest?"),
        ("train.optimizer=adm", "did you mean adam?"),
    ],
)
def test_unknown_words_suggest_the_nearest(change, hint):
    with raises(InputError, hint, change.partition("=")[0], "give"):
        read_config(None, [change])
    with pytest.raises(InputError) as caught:
        read_config(None, [f"{change.partition('=')[0]}=xyz"])
    assert "did you mean" not in str(caught.value)


def test_a_value_cannot_be_a_section():
    names(complaint("train.rounds=3", "train.rounds.x=3"), "rounds is a value", "section")


def test_a_long_value_is_shortened():
    assert len(complaint(f"fleet.cuts={[*range(500)]}".replace("499", '"a"'))) < 200


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5_000])
def test_absurd_values_are_words(text):
    names(complaint(f"train.rounds={text}"), "config train.rounds")


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.toml", b"seed = ", ("a.toml", "read as toml")),
        ("a.json", b'{"seed": 3', ("a.json", "read as json")),
        ("a.json", b"[1, 2]", ("a.json holds list", "table of sections")),
        ("a.json", b'{"train": null}', ("train is None", "a section")),
        ("a.json", b'{"train": {"lr": NaN}}', ("train.lr is nan",)),
        ("a.json", b"[" * 100_000, ("a.json", "read as json")),
        ("a.toml", b"\xff\xfe\x00", ("a.toml", "no text", "save it as UTF-8")),
        ("a.yaml", b"train:\n  rounds: 3\n", ("a.yaml is YAML", "config is TOML", "line [train]", "rounds = 20")),
        ("a.toml", b"train:\n  rounds: 3\n", ("a.toml is YAML", "config is TOML", "line [train]")),
        ("a.toml", b"sed = 3", ("config field 'sed'", "did you mean 'seed'?")),
    ],
)
def test_broken_files(tmp_path, name, content, parts):
    path = tmp_path / name
    path.write_bytes(content)
    with raises(InputError, *parts) as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("source", "hint"), [("dmo", "did you mean demo?"), ("/nowhere/at/all.toml", "")])
def test_no_such_config(source, hint):
    with raises(InputError, f"config '{source}'", "readable file", "presets: demo, gpt-text", hint) as caught:
        read_config(source)
    assert ("did you mean" in str(caught.value)) == bool(hint)


def test_a_number_too_long_to_write_is_refused_in_one_line():
    with raises(InputError, "data.image_size", "type int", "give "):
        parse_config({"data": {"image_size": 10**5000}})
