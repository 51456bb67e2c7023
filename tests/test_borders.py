"""What a folder offers to the others stands in its `__init__`, as OFFERED: names by module. Nothing else crosses a border."""

import ast
import re
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.test_imports import MODULES, ROOT

Names = dict[str, set[str]]  # names of a folder by module: "cuts.search" -> {"search_cuts", ...}
FOLDERS = sorted({path.parts[0] for path in MODULES.values() if len(path.parts) > 1} - {"presets", "commands"})


NAMED_BY_SUBJECT = {
    "commands",
    "data/readers",
    "experiments",
    "frameworks",
    "models",
}  # after a command, a format, a paper


def folder_of(module: str) -> str:
    """hsfl.models.zoo -> models; the empty text for hsfl itself."""
    return module.partition(".")[2].partition(".")[0]


def crossing() -> dict[str, Names]:
    """Which names of each folder the modules of other folders (and `hsfl` itself) use, by folder and module."""
    used: dict[str, Names] = {folder: defaultdict(set) for folder in FOLDERS}
    for module, path in {**MODULES, "hsfl": ROOT / "__init__.py"}.items():
        tree = ast.parse((ROOT / path).read_text())
        aliases: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hsfl"):
                for alias in node.names:
                    full_name = f"{node.module}.{alias.name}"
                    if full_name in MODULES:
                        aliases[alias.asname or alias.name] = full_name
                    else:
                        note(used, module, str(node.module), alias.name)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
                note(used, module, aliases[node.value.id], node.attr)
    return used


def note(used: dict[str, Names], user: str, module: str, name: str) -> None:
    folder, _, inside = module.partition(".")[2].partition(".")
    if folder in used and folder != folder_of(user):
        used[folder][inside].add(name)


USED = crossing()


def offered(folder: str) -> dict[str, tuple[str, ...]]:
    """The value of OFFERED in the folder's `__init__`."""
    for node in ast.parse((ROOT / folder / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "OFFERED":
            return dict(ast.literal_eval(node.value))
    return {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_others_use_what_a_folder_offers_and_all_of_it(folder: str) -> None:
    """A name that leaves a folder is listed; a name that is listed leaves it. What `__init__` itself exports needs no entry."""
    lists = {module: set(names) for module, names in offered(folder).items()}
    uses = {module: names for module, names in USED[folder].items() if module}
    assert lists == uses, f"OFFERED in hsfl/{folder}/__init__.py must list what other folders import: {dict(uses)}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_a_folder_offers_is_in_order(folder: str) -> None:
    """Modules and the names of each are in alphabetical order, whether or not a letter is a capital."""
    lists = offered(folder)
    assert list(lists) == sorted(lists)
    for module, names in lists.items():
        assert list(names) == sorted(names, key=str.lower), f"{module} in hsfl/{folder}/__init__.py"


def test_a_folder_says_what_each_of_its_files_is() -> None:
    """The docstring of `__init__` names every module and every folder in it, unless they are named after what they are about."""
    folders = {path.parent for path in ROOT.rglob("__init__.py")} - {ROOT, ROOT / "presets"}
    unnamed = set()
    for folder in folders:
        words = set(re.findall(r"\w+", str(ast.get_docstring(ast.parse((folder / "__init__.py").read_text())))))
        inside = {
            path.parent if path.stem == "__init__" else path
            for path in (*folder.glob("*.py"), *folder.glob("*/__init__.py"))
        }
        if folder.relative_to(ROOT).as_posix() not in NAMED_BY_SUBJECT:
            unnamed |= {path.relative_to(ROOT).as_posix() for path in inside - {folder} if path.stem not in words}
    assert unnamed == set()


def test_no_private_name_leaves_its_module_or_folder() -> None:
    """Of a top-level file nobody else imports private names, of a folder no other folder."""
    private = [f"{folder}.{module}.{name}" for folder in USED for module, names in USED[folder].items() for name in names
               if name.startswith("_")]  # fmt: skip
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module) in MODULES and str(node.module).count(".") == 1:
                private += [f"{module}: {alias.name}" for alias in node.names if alias.name.startswith("_")]
    assert not private


def test_modules_are_imported_by_from() -> None:
    """`import hsfl.a.b` would cross a border unseen."""
    plain = [
        f"{module}: {alias.name}"
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.startswith("hsfl.")
    ]
    assert not plain


def test_a_device_loads_no_optimiser() -> None:
    code = "import sys, hsfl.deploy.processes, hsfl.deploy.settings; sys.exit(bool({'numba', 'scipy', 'matplotlib'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_folder_is_imported_whole_and_no_module_by_its_text() -> None:
    """Both would reach every name of a folder around its list: `from hsfl import allocation`, `import_module("hsfl.allocation.exact")`."""
    around = []
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "hsfl":
                around += [f"{module}: {alias.name}" for alias in node.names if alias.name in FOLDERS]
            elif (
                isinstance(node, ast.Call)
                and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module"
            ):
                around += [
                    f"{module}: {text.value}"
                    for text in node.args
                    if isinstance(text, ast.Constant) and "hsfl" in str(text.value)
                ]
    assert not around
