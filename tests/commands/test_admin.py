"""`hsfl admin` as people and programs use it: what is written, and what is refused at once."""

from pathlib import Path

import pytest

from hsfl.commands.serve import _order_sentences
from hsfl.deploy.admin.operator_events import EVENTS_FILE, read_events
from hsfl.deploy.main.roster import Roster
from hsfl.deploy.settings import MainSettings, read_settings, run_config
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import names
from tests.small_runs import hsfl, refused

MAIN = """
min_clients = 2
[run]
model.name = "cnn"
fleet.num_clients = 4
fleet.cuts = [1, 2, 3, 5]
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """The file of a main server that has begun its run folder and does not run now."""
    file = tmp_path / "main.toml"
    file.write_text(MAIN)
    main = read_settings(file, MainSettings)
    RunFolder(main.out).create(run_config(main), 1)
    Roster(Path(main.out), ("ward-1", "ward-2"), 4)
    return file


def test_orders_are_written_for_the_next_round(settings: Path) -> None:
    orders = (
        "pause", "resume", "drain", "kick ward-1 --why sold", "bench ward-2 --rounds 4", "bench ward-1", "resume ward-2",
        "set tau_s=90 min_clients=3 cut.ward-1=2",
    )  # fmt: skip
    for words in orders:
        answer = hsfl("admin", settings, *words.split())
        assert (answer.code, answer.err) == (0, "")
        names(answer.out, words.partition(" --why")[0], "next round", "hsfl status")
    events = read_events(settings.parent / "run")
    assert [str(event) for event in events] == [words.partition(" --why")[0] for words in orders]
    assert [getattr(event, "why", None) for event in events if "ward-1" in str(event)] == ["sold", "", ""]


def test_for_programs(settings: Path) -> None:
    told = hsfl("admin", settings, "bench", "ward-1", "--rounds", 2, "--json").json()
    assert told.keys() == {"order", "time", "file"}
    assert told["order"] == "bench ward-1 --rounds 2"
    assert told["file"] == str(settings.parent / "run" / EVENTS_FILE)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("kick ward-3", ("client", "'ward-3'", "ward-1, ward-2")),
        ("kick", ("kick", "name of a device")),
        ("kick ward-1 ward-2", ("kick", "'ward-2'", "one device at a time")),
        ("pause ward-1", ("pause", "'ward-1'", "leave it out")),
        ("drain --rounds 3", ("--rounds is 3", "drain", "leave it out")),
        ("resume ward-1 --why now", ("--why", "'now'", "leave it out")),
        (f"kick ward-1 --why {'x' * 301}", ("--why", "301 characters", "at most 300")),
        ("set", ("set", "tau_s=90")),
        ("set tau_s", ("'tau_s'", "tau_s=90")),
        ("set tau_s=-1", ("'tau_s=-1'", "tau_s=90")),
        ("set tau_s=nan", ("'tau_s=nan'", "tau_s=90")),
        ("set tau_s=9 tau_s=7", ("several values", "tau_s", "give one")),
        ("set tau=9", ("setting", "'tau'", "did you mean tau_s")),
        ("set min_clients=9", ("min_clients is 9", "1 to 4")),
        ("set cut.ward-9=1", ("client", "'ward-9'", "did you mean")),
        ("set cut.ward-1=0", ("cut.ward-1 is 0", "1 or more")),
    ],
)
def test_wrong_words_are_told_at_once_and_nothing_is_written(
    settings: Path, words: str, parts: tuple[str, ...]
) -> None:
    names(refused("admin", settings, *words.split()), *parts)
    assert read_events(settings.parent / "run") == []


def test_without_a_run_there_is_nobody_to_order(tmp_path: Path) -> None:
    (tmp_path / "main.toml").write_text(MAIN)
    names(refused("admin", tmp_path / "main.toml", "pause"), "no run yet", "hsfl serve main")
    assert not (tmp_path / "run").exists()


def test_help_shows_every_order() -> None:
    text = hsfl("admin", "--help").out
    for word in ("kick", "bench", "pause", "resume", "drain", "set"):
        assert f"hsfl admin main.toml {word}" in text


def test_status_says_what_was_ordered_and_who_is_benched() -> None:
    nobody = {"benched": None, "kicked": None}
    clients = [
        {"name": "ada"} | nobody,
        {"name": "bo"} | nobody | {"benched": {"rounds": 3, "why": "it was late"}},
        {"name": "cy"} | nobody | {"benched": {"rounds": None, "why": "new battery"}},
        {"name": "di"} | nobody | {"kicked": "sold"},
    ]
    quiet = {"paused": False, "draining": False, "pending_orders": [], "clients": clients[:1]}
    assert _order_sentences(quiet) == []
    pending = ["bench ada", "set tau_s=90"]
    sentences = _order_sentences({"paused": True, "draining": True, "pending_orders": pending, "clients": clients})
    wanted = [
        ("paused", "resume"), ("draining", "ends"), ("bo is benched", "3 more rounds", "late"),
        ("cy is benched", "until it is resumed", "new battery"), ("di", "taken out", "sold"), (*pending,),
    ]  # fmt: skip
    for sentence, parts in zip(sentences, wanted, strict=True):
        names(sentence, *parts)
