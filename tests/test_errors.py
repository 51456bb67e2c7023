"""What is missing is named with the command that installs it, which works although no package index has hsfl."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from hsfl.errors import install_extra, requirements
from tests.naming import names

ROOT = Path(__file__).parents[1]
FILES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile")),
    *(path for path in (ROOT / "docs").glob("*.md") if path.name != "log.md"),
    *(ROOT / "src/hsfl").rglob("*.py"),
]


@pytest.mark.parametrize("extra", ["plan", "report", "deploy", "export", "ray", "text", "tensorboard"])
def test_an_extra_is_installed_by_its_packages(extra: str) -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    command = install_extra(extra).replace("_", "-")
    assert command == " ".join(["pip install", *(f'"{package}"' for package in packages)]).replace("_", "-")


def test_what_everyone_needs_is_apart_from_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert requirements() == project["dependencies"]


def test_where_pip_knows_nothing_of_hsfl_the_checkout_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", unknown)
    assert requirements() == []
    names(install_extra("plan"), "'.[plan]'", "checkout")


def test_nothing_is_installed_from_an_index_that_does_not_have_it() -> None:
    """`pip install hsfl` and `pip install 'hsfl[plan]'` find nothing; the name of a wheel is another matter."""
    wrong = re.compile(r"pip install ['\"]?hsfl(?!-)\b")
    assert [path.relative_to(ROOT).as_posix() for path in FILES if wrong.search(path.read_text())] == []


def test_a_wheel_is_named_by_its_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    wheels = {wheel for path in FILES for wheel in re.findall(r"hsfl-[\w.]+-py3-none-any\.whl", path.read_text())}
    assert wheels == {f"hsfl-{version}-py3-none-any.whl"}
