"""A name has one meaning: no two files, classes or public functions of the package have the same name."""

import ast
from collections import defaultdict
from pathlib import Path

from tests.test_imports import FILES, ROOT


def several_homes(places: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: homes for name, homes in places.items() if len(homes) > 1}


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.as_posix()}:{node.lineno}")
    assert not several_homes(places)


def test_no_two_public_functions_have_one_name() -> None:
    """A reader who meets `read_csv` or `solve_exclusive` need not look up its module."""
    places = defaultdict(list)
    for path in FILES:
        for node in ast.parse((ROOT / path).read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.as_posix()}:{node.lineno}")
    assert not several_homes(places)


def test_no_two_files_have_one_name() -> None:
    places = defaultdict(list)
    for path in FILES:
        if not Path(path).stem.startswith("__"):
            places[Path(path).stem].append(path.as_posix())
    assert not several_homes(places)
