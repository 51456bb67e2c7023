"""Python snippets of the documents use names that are there."""

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SNIPPETS = [
    pytest.param(snippet, id=f"{path.name}-{number}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if path.name != "log.md"  # speaks of what was
    for number, snippet in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.S), 1)
]


def imported_modules(tree: ast.AST) -> dict[str, ModuleType]:
    """The modules of the package that a snippet imports, by the names it gives them. A name that is not there is an error."""
    modules: dict[str, ModuleType] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "hsfl":
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
                if isinstance(value := getattr(module, alias.name), ModuleType):
                    modules[alias.asname or alias.name] = value
        elif isinstance(node, ast.Import) and any(alias.name == "hsfl" for alias in node.names):
            modules["hsfl"] = importlib.import_module("hsfl")
    return modules


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_names_of_a_snippet_are_there(snippet: str) -> None:
    tree = ast.parse(snippet)
    modules = imported_modules(tree)
    used = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
    }
    assert {f"{name}.{attribute}" for name, attribute in used if not hasattr(modules[name], attribute)} == set()
