"""What the documents name is there: files of the repository, and the functions of docs/paper.md."""

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[1]
HISTORY = ("log.md", "results.md")  # speak of what was
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = re.findall(
    r"`((?:training|network|allocation|frameworks)\.\w+(?:\.\w+)*)`", (ROOT / "docs/paper.md").read_text()
)


@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if path.name not in HISTORY], ids=lambda path: path.name
)
def test_files_that_a_document_names_are_there(document: Path) -> None:
    named = set(re.findall(r"\b(?:tests|docs|benchmarks)/[\w./-]+\.(?:py|md|json|png)\b", document.read_text()))
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("name", NAMES)
def test_functions_that_the_paper_is_mapped_to_are_there(name: str) -> None:
    assert resolve_name(f"hsfl.{name}") is not None


def test_the_paper_is_mapped_to_functions() -> None:
    assert len(NAMES) > 10
