"""The package: what its metadata, its citation and its list of licences say, and both of its forms in a new environment."""

import os
import re
import runpy
import subprocess
import sys
import tomllib
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]
PYTHONS = os.environ.get("HSFL_PYTHONS", sys.executable).split(",")
SHORT_DEMO = """
compare demo --train-once -f hsfl -f fl --out out --set data.limit=60 --set data.limit_test=40 --set train.rounds=1
--set train.batch_size=8 --set model.name=cnn --set model.norm=none --set fleet.num_clients=3 --set allocation.samples=2
"""


def names(text: str, pattern: str) -> set[str]:
    """Names of packages, as indices compare them."""
    return {re.sub(r"[-_.]+", "-", name).lower() for name in re.findall(pattern, text, re.M)}


def test_the_citation_has_the_version_of_the_package() -> None:
    assert re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M) == [VERSION]
    assert re.findall(r"version = \{(.+)\}", (ROOT / "docs/cite.md").read_text()) == [VERSION]
    assert f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_pinned_package_has_a_licence_on_the_page() -> None:
    """If this fails, docs/licences.py says how to write the page again."""
    pinned = names((ROOT / "constraints.txt").read_text(), r"^([\w.-]+)==")
    assert names((ROOT / "docs/licences.md").read_text(), r"^\| ([\w.-]+) \| \S.* \|") - {"package", "-"} == pinned


def test_every_dependency_is_pinned() -> None:
    groups = PROJECT["dependency-groups"].values()
    extras = PROJECT["project"]["optional-dependencies"].values()
    lists = [PROJECT["project"]["dependencies"], *extras, *groups]
    asked = [need for needs in lists for need in needs if isinstance(need, str)]
    wanted = names("\n".join(asked), r"^([\w.-]+)") - {"hsfl"}
    assert wanted <= names((ROOT / "constraints.txt").read_text(), r"^([\w.-]+)==")


def test_a_licence_is_read_from_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    licence = runpy.run_path(str(ROOT / "docs/licences.py"))["licence"]
    about = Message()
    monkeypatch.setattr(metadata, "metadata", lambda name: about)
    assert licence("it") == "not named"
    about["License"] = "Copyright\n\nPermission is hereby granted, free of\ncharge, to any person obtaining a copy"
    assert licence("it") == "MIT"
    about["Classifier"] = "License :: OSI Approved :: BSD License"
    assert licence("it") == "BSD License"
    about["License-Expression"] = "BSD-3-Clause"
    assert licence("it") == "BSD-3-Clause"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel, which is built from the sdist, and the sdist."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], check=True, capture_output=True)
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_the_package_runs_the_demo_in_a_new_environment(packages: dict[str, Path], python: str, tmp_path: Path) -> None:
    """With the pins of the tests, nothing of the checkout, an empty HOME and an empty folder. The sdist installs the wheel's files."""
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run([python, "-m", "venv", str(tmp_path / "venv")], check=True)
    commands = tmp_path / "venv/bin"
    install = [commands / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*install, "-c", ROOT / "constraints.txt", f"{packages['wheel']}[demo]"])
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "OMP_NUM_THREADS": "1"}
    assert run([commands / "hsfl", "--version"], env=environment) == f"hsfl {VERSION}\n"
    run([commands / "hsfl", *SHORT_DEMO.split()], cwd=home, env=environment)
    assert (home / "out/report.html").stat().st_size > 10_000
    files = installed_files(tmp_path / "venv")
    run([*install, "--no-deps", "--force-reinstall", packages["sdist"]])
    assert installed_files(tmp_path / "venv") == files


def run(command: list[str | Path], **options: Any) -> str:
    """What a command prints; its errors are the test's."""
    ended = subprocess.run(command, capture_output=True, text=True, **options)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def installed_files(environment: Path) -> set[str]:
    """The package's files in an environment, without what Python compiled."""
    (package,) = environment.glob("lib/python3*/site-packages/hsfl")
    return {str(path.relative_to(package)) for path in package.rglob("*") if path.suffix != ".pyc" and path.is_file()}
