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


def test_every_folder_of_tests_is_a_package() -> None:
    """So that two files may have one name, and helpers have one import path."""
    folders = {path.parent for path in TESTS.rglob("*.py")}
    assert {folder for folder in folders if not (folder / "__init__.py").is_file()} == set()
