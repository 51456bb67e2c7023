"""What the documents name is there: files of the repository, and the functions of docs/paper.md."""

import ast
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


ELSEWHERE = (
    "torch",
    "pandas",
    "csv",
    "numpy",
    "grpc_health_probe",
    "with",
)  # names of other packages, tools and of Python
FILE_ENDINGS = ("py", "jsonl", "json", "csv", "md", "toml", "html")


def words_of_the_sources() -> set[str]:
    """Every name that the package's files define, use or write as a text of one word, and the names of files and folders."""
    words: set[str] = set()
    for path in (ROOT / "src/hsfl").rglob("*.py"):
        words |= {path.stem, path.parent.name}
        for node in ast.walk(ast.parse(path.read_text())):
            words |= {getattr(node, field) for field in ("name", "id", "attr", "arg") if getattr(node, field, None)}
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
    return words


def test_names_in_docstrings_are_there() -> None:
    """A docstring that says `name` or `module.name` speaks of something that exists, so that a renamed thing is renamed there, too."""
    words, stale = words_of_the_sources(), []
    for path in sorted((ROOT / "src/hsfl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for name in re.findall(r"`([a-z_]+(?:\.[A-Za-z_]+)*)`", ast.get_docstring(node) or ""):
                parts = [part for part in name.removeprefix("hsfl.").split(".") if part not in FILE_ENDINGS]
                if name.partition(".")[0] not in ELSEWHERE and not {*parts} <= words | {"hsfl", "rounds"}:
                    stale.append(f"{path.relative_to(ROOT)}: {name}")
    assert not stale
