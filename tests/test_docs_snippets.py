"""Snippets and commands of the documents: their names are there, and every one is run by some test or says why it is not."""

import ast
import importlib
import re
import shlex
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from hsfl.cli import app
from hsfl.config import RunConfig
from tests.plugins.files import unload
from tests.snippets import blocks_of, run_blocks

ROOT = Path(__file__).parents[1]
PAGES = [  # the log speaks of what was
    path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if path.name != "log.md"
]
SNIPPETS = [
    pytest.param(snippet, id=f"{path.name}-{number}")
    for path in PAGES
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


ELSEWHERE = {  # which test runs the snippets of a page
    "README.md": "test_readme.py",
    "start.md": "test_readme.py",
    "data.md": "test_docs_data.py",
    "extend.md": "plugins/test_extend_document.py",
    "fleet.md": "test_fleet_story.py",
    "models.md": "test_docs_models.py",
    "sweep.md": "test_sweep_guide.py",
}
QUICK, SLOW = ("clock.md", "codecs.md", "deploy.md", "scenario.md"), ("allocation.md", "robust.md", "simulate.md")
RUN_HERE = [*QUICK, *(pytest.param(page, marks=pytest.mark.slow) for page in SLOW)]


@pytest.mark.parametrize("page", RUN_HERE)
def test_a_page_runs_as_it_stands(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Python as one program, and its commands, made small, in a folder that has docs/examples."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    try:
        run_blocks((ROOT / "docs" / page).read_text(), tmp_path)
    finally:
        unload()  # what the page registered


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_snippet_is_run_or_says_why_not(path: Path) -> None:
    """Python and commands of a page are run by this test or by the one that ELSEWHERE names, unless a comment before the block gives
    the reason."""
    blocks = [block for block in blocks_of(path.read_text()) if block.kind in ("python", "shell")]
    assert all(len(block.not_run.split()) > 1 for block in blocks if block.not_run)
    to_run = [block for block in blocks if not block.not_run]
    if path.name in (*QUICK, *SLOW, *ELSEWHERE):
        assert to_run, f"{path.name} has nothing to run; take it off the lists of this file"
        commands = [line for block in to_run if block.kind == "shell" for line in block.command_lines]
        assert [line for line in commands if not line.startswith("hsfl ")] == []
    else:
        assert to_run == [], (
            f"{path.name} has snippets that no test runs: run them, or put <!-- not run: REASON --> before them"
        )


@pytest.mark.parametrize("page", ELSEWHERE)
def test_the_test_that_is_named_for_a_page_reads_the_page(page: str) -> None:
    test = (ROOT / "tests" / ELSEWHERE[page]).read_text()
    assert page.partition(".")[0].lower() in test.lower()


def commands_of(path: Path) -> list[str]:
    """Lines that begin with hsfl, in indented and in fenced blocks, with the lines that go on after a backslash."""
    text = path.read_text().replace("\\\n", " ")
    shell = "".join(re.findall(r"```sh\n(.*?)```", text, re.S))
    return re.findall(r"^    (hsfl .+)$", text, re.M) + re.findall(r"^(hsfl .+)$", shell, re.M)


@pytest.mark.parametrize("path", [path for path in PAGES if commands_of(path)], ids=lambda path: path.name)
def test_options_and_settings_of_commands_are_there(path: Path) -> None:
    unknown, root = [], typer.main.get_command(app)
    for line in commands_of(path):
        command: Any = root
        words = shlex.split(line, comments=True)[1:]
        while below := getattr(command, "commands", None):
            command = below[words.pop(0)]
        options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
        unknown += [word for word in words if re.match(r"--?[a-z]", word) and word not in options]
        settings = [after for word, after in pairwise(words) if word == "--set"]
        unknown += [setting for setting in settings if not is_setting(setting.partition("=")[0])]
    assert unknown == []


def is_setting(name: str) -> bool:
    """Whether a config has it; what stands below options is a plugin's affair."""
    model: Any = RunConfig
    for part in name.split("."):
        if part == "options":
            return True
        if part not in model.model_fields:
            return False
        field = model.model_fields[part].annotation
        model = field if isinstance(field, type) and issubclass(field, BaseModel) else None
    return True
