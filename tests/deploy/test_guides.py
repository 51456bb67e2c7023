"""What docs/deploy.md and docs/protocol.md say is so."""

import re
from pathlib import Path

import pytest

from hsfl.deploy.metrics import REFUSED_CONNECTIONS
from hsfl.deploy.settings import ClientSettings, EdgeSettings, MainSettings
from hsfl.deploy.wire.client_messages import Hello
from hsfl.deploy.wire.frames import VERSION
from hsfl.deploy.wire.messages import KINDS, pack_message
from tests.small_runs import hsfl

DOCS = Path(__file__).parents[2] / "docs"


def test_the_message_in_the_guide_is_whole() -> None:
    text = (DOCS / "protocol.md").read_text()
    rows = re.findall(r"^    ((?:[0-9a-f]{2} +)+)", text, re.MULTILINE)
    assert bytes.fromhex("".join(rows)) == pack_message(Hello("ward-1"))
    assert f"Version {VERSION}." in text


def test_every_message_has_its_number_in_the_guide() -> None:
    text = (DOCS / "protocol.md").read_text().replace("`", "")
    for record, number in KINDS.items():
        name = record.__name__
        assert f"| {number} | {name} |" in text or f"{name} ({number})" in text, name


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("main", MainSettings),
        ("servers|edge server, device", EdgeSettings),
        ("edge server, device|device", ClientSettings),
    ],
)
def test_every_setting_is_in_the_table(file: str, kind: type) -> None:
    text = (DOCS / "deploy.md").read_text()
    table = "".join(re.findall(rf"^\| (?:all|servers|{file}) \|.*$", text, re.MULTILINE))
    for name in kind.model_fields:
        assert f"`{name}`" in table, name


def test_the_compose_file_calls_commands_and_settings_that_there_are() -> None:
    """It is not run, so at least its words are right."""
    folder = DOCS / "examples" / "container"
    text = (folder / "compose.yaml").read_text()
    commands = [words.split(", ") for words in re.findall(r"command: \[(.*)\]", text)]
    assert [words[:2] for words in commands] == [["serve", "main"], ["serve", "edge"], ["client", "ward-1.toml"]]
    for words in commands:
        shown = hsfl(*(["serve", words[1]] if words[0] == "serve" else ["client"]), "--help").out
        assert {word for word in words if word.startswith("--")} == {"--json-log"}
        assert "--json-log" in shown
    for name in re.findall(r"\./([\w-]+\.toml):/srv/hsfl/(?:[\w-]+\.toml):ro", text):
        assert any(name in words for words in commands), name
    assert "[deploy,plan]" in (folder / "Containerfile").read_text()
    assert "docs/examples/container/" in (DOCS / "deploy.md").read_text()


def test_every_cell_of_who_can_do_what_names_a_test_that_is_there() -> None:
    section = (DOCS / "deploy.md").read_text().partition("### Who can do what")[2].partition("A device is careful")[0]
    rows = [line.strip("| \n").split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 9
    tests = {
        name
        for path in Path(__file__).parent.rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    for _, *cells in rows:
        assert len(cells) == 3
        for cell in cells:
            named = re.findall(r"`(test_\w+)`", cell)
            assert named, cell
            assert set(named) <= tests, cell


def test_the_guide_tells_every_reason_why_a_connection_is_refused() -> None:
    text = (DOCS / "deploy.md").read_text()
    assert all(f"`{reason}`" in text for reason in REFUSED_CONNECTIONS)
