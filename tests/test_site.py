"""The site is built without a warning, and has what is read from the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import hsfl
from hsfl.cli import app

DOCS = Path(__file__).parents[1] / "docs"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as make docs builds it."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    built = subprocess.run([*build, "-d", folder / "trees", DOCS, folder / "html"], capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    return folder / "html"


def test_every_command_has_a_section(site: Path) -> None:
    headings = re.findall(r"^##+ `hsfl (.+)`$", (site / "commands.md").read_text(), re.M)
    assert {*typer.main.get_command(app).commands} <= {*headings}
    assert "data fetch" in headings
    assert (site / "commands.html").read_text().count("<h2>") == len(typer.main.get_command(app).commands)


def test_every_public_name_has_an_entry(site: Path) -> None:
    found = set(re.findall(r'<dt class="sig sig-object py" id="(\w+)">', (site / "python.html").read_text()))
    assert found == set(hsfl.__all__) - {"POLICY_RULES"}


def test_arguments_are_a_list(site: Path) -> None:
    assert "<strong>time_limit_s</strong>: seconds in all." in (site / "python.html").read_text()


def test_a_page_that_is_named_is_a_link(site: Path) -> None:
    text = (site / "faq.html").read_text()
    assert 'href="results.html"><span class="doc">docs/results.md</span>' in text
    assert "docs/results.md" not in re.sub(r"<a .*?</a>", "", text, flags=re.S)


def test_a_program_that_reads_finds_every_page(site: Path) -> None:
    pages = re.findall(r"^- \[.+?\]\((\S+?)\): \S", (site / "llms.txt").read_text(), re.M)
    assert sorted(pages) == sorted(path.name for path in DOCS.glob("*.md"))
    assert "## `hsfl run`" in (site / "commands.md").read_text()
    assert "{include}" not in (site / "security.md").read_text()
