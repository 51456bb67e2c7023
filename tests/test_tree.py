"""Tests lie where the code lies: tests/x holds the tests of src/hsfl/x."""

from pathlib import Path

from tests.test_imports import ROOT

TESTS = Path(__file__).parent
ELSEWHERE = {
    "laws": "equalities between modules of several folders",
    "plugins": "files of the user's reach every folder through one module, src/hsfl/plugins.py",
}


def test_a_folder_of_tests_is_a_folder_of_the_package() -> None:
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    strays = {folder for folder in folders if not (ROOT / folder).is_dir()}
    assert {folder.as_posix() for folder in strays} == set(ELSEWHERE)


def test_a_test_named_after_a_module_lies_beside_it() -> None:
    """tests/x/test_y.py is of x/y.py, or of no module called y. Laws may be named after what they are about."""
    homes = {path.stem: path.parent.relative_to(ROOT) for path in ROOT.rglob("*.py") if path.stem != "__init__"}
    tests = {path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    strays = {
        test.as_posix()
        for test in tests
        if test.parent != homes.get(test.stem.removeprefix("test_"), test.parent) and test.parent.name != "laws"
    }
    assert strays == set()


def test_every_folder_of_tests_is_a_package() -> None:
    """So that two files may have one name, and helpers have one import path."""
    folders = {path.parent for path in TESTS.rglob("*.py")}
    assert {folder for folder in folders if not (folder / "__init__.py").is_file()} == set()
