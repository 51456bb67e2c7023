"""What the documents name is there: files of the repository, and the functions of docs/paper.md."""

import ast
import re
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

import hsfl
from hsfl.config import RunConfig

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
    named = set(re.findall(r"\b(?:tests|docs|benchmarks)/[\w./-]+\.(?:py|md|json|png|toml)\b", document.read_text()))
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if path.name not in HISTORY], ids=lambda path: path.name
)
def test_modules_that_a_document_names_are_there(document: Path) -> None:
    """`stage/exclusive.py` is the end of a path in this repository, or the name of a file that the document shows (`# my_net.py`)."""
    text = document.read_text()
    files = {f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob("*/**/*.py")}
    named = {name for name in re.findall(r"`([\w./]+\.py)`", text) if not name.startswith("my_")}
    assert {name for name in named if not any(file.endswith(f"/{name}") for file in files)} == set()


@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if path.name not in HISTORY], ids=lambda path: path.name
)
def test_names_that_a_documents_python_uses_are_there(document: Path) -> None:
    """What a block imports from hsfl, and `module.name` of a module that it imports."""
    for block in re.findall(r"^```python\n(.*?)^```", document.read_text(), re.S | re.M):
        modules, nodes = {}, list(ast.walk(ast.parse(block)))
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hsfl"):
                for alias in node.names:
                    thing = resolve_name(f"{node.module}.{alias.name}")
                    modules |= {alias.asname or alias.name: thing} if isinstance(thing, ModuleType) else {}
            elif isinstance(node, ast.Import):
                modules |= {alias.name: hsfl for alias in node.names if alias.name == "hsfl"}
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                assert hasattr(modules[node.value.id], node.attr), f"{node.value.id}.{node.attr}"


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
