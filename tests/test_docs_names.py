"""What the documents name is there: files of the repository, and the functions of docs/paper.md."""

import ast
import re
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name

import pytest

from hsfl.config import RunConfig

ROOT = Path(__file__).parents[1]
HISTORY = ("log.md", "results-long.md")  # speak of what was
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = ("src", "tests", "docs", "benchmarks")
FILES_OF_READERS = {"my.py"}  # that a reader writes
NAMES = re.findall(
    r"`((?:training|network|allocation|frameworks)\.\w+(?:\.\w+)*)`", (ROOT / "docs/paper.md").read_text()
)


@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if path.name not in HISTORY], ids=lambda path: path.name
)
def test_files_that_a_document_names_are_there(document: Path) -> None:
    named = set(re.findall(r"\b(?:tests|docs|benchmarks)/[\w./-]+\.(?:py|md|json|png|toml)\b", document.read_text()))
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if path.name not in HISTORY], ids=lambda path: path.name
)
def test_python_files_that_a_document_names_are_somewhere(document: Path) -> None:
    """`stage/stage.py` is the end of a path of the repository; a file that a reader is to write has no such name here."""
    there = [f"/{path.as_posix()}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    named = set(re.findall(r"`([\w/]+\.py)`", document.read_text())) - FILES_OF_READERS
    assert {name for name in named if not any(path.endswith(f"/{name}") for path in there)} == set()


def headings(path: Path) -> set[str]:
    """What may follow # in a link to the page, as hosts of Markdown and the site write it."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"], ids=lambda path: path.name
)
def test_links_of_a_document_lead_somewhere(document: Path) -> None:
    """Links and pictures of the repository; what lies elsewhere is not asked."""
    text = re.sub(r"```.*?```|`[^`\n]+`", "", document.read_text(), flags=re.S)
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, part = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        if "://" not in link and (not target.exists() or (part and part not in headings(target))):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_table_of_a_document_has_a_head(document: Path) -> None:
    """A blank line in a table cuts it in two, and the second half is shown as text."""
    lines = ["", *re.sub(r"```.*?```", "", document.read_text(), flags=re.S).splitlines(), ""]
    starts = [i for i in range(1, len(lines) - 1) if lines[i].startswith("| ") and not lines[i - 1].startswith("|")]
    assert [lines[i] for i in starts if not re.fullmatch(r"[|:\- ]+", lines[i + 1])] == []


def test_no_file_has_marks_of_a_merge() -> None:
    """Seven signs at the beginning of a line; a docstring may hold them without any error."""
    paths = [path for folder in FOLDERS for kind in ("py", "md", "toml") for path in (ROOT / folder).rglob(f"*.{kind}")]
    marked = [path for path in [*paths, *ROOT.glob("*.md")] if re.search(r"^(<{7}|>{7}) ", path.read_text(), re.M)]
    assert marked == []


def test_every_page_is_in_one_table_of_contents() -> None:
    """And every entry is a page, so that a reader of the site finds all of them."""
    docs = ROOT / "docs"
    tables = re.findall(r"```\{toctree\}\n(?::[^\n]+\n)*(.*?)```", (docs / "index.md").read_text(), re.S)
    assert sorted(" ".join(tables).split()) == sorted(path.stem for path in docs.glob("*.md") if path.stem != "index")


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


def names_in_modules() -> dict[str, set[str]]:
    """What may follow `module.`: every name that the file defines or writes, for all files and folders of the package."""
    inside: dict[str, set[str]] = {}
    for path in (ROOT / "src/hsfl").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        defined = {
            node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
        stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        inside.setdefault(path.stem, set()).update(defined, stored)
        inside.setdefault(path.parent.name, set()).update({path.stem}, defined)
        inside.setdefault(path.parent.parent.name, set()).add(path.parent.name)
    return inside


def test_names_in_docstrings_are_there() -> None:
    """A docstring that says `name` or `module.name` speaks of something that exists there, so that a renamed thing is renamed in
    docstrings, too."""
    words, inside, stale = words_of_the_sources(), names_in_modules(), []
    settings = {*RunConfig.model_fields}
    for path in sorted((ROOT / "src/hsfl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for name in re.findall(r"`([a-z_]+(?:\.[A-Za-z_]+)*)`", ast.get_docstring(node) or ""):
                parts = [part for part in name.removeprefix("hsfl.").split(".") if part not in FILE_ENDINGS]
                if name.partition(".")[0] in ELSEWHERE:
                    continue
                known = {*parts} <= words | {"hsfl", "rounds"} and all(
                    part in inside[owner]
                    for owner, part in pairwise(parts)
                    if owner in inside and parts[0] not in settings
                )
                if not known:
                    stale.append(f"{path.relative_to(ROOT)}: {name}")
    assert stale == []
