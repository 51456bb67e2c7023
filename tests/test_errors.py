"""Errors speak of arguments to callers from Python, and of options to people at a terminal; what is missing is named with the command
that installs it, which works although no package index has hsfl."""

import ast
import pickle
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import hsfl
from hsfl.errors import (
    ARGUMENTS,
    DataMissing,
    InputError,
    in_arguments,
    install_extra,
    requirements,
    speaks_of_arguments,
)
from tests.naming import names, raises
from tests.small_runs import refused, tiny, tiny_words
from tests.test_imports import FILES, ROOT

OTHER_PROGRAMS = {"--head", "--port", "--shm-size"}  # ray start, docker run
ONLY_COMMANDS = {
    "--server",
    "--format",
    "--to",
    "--name",
    "--save",
}  # hsfl measure and hsfl export, which Python does not have
AT_A_TERMINAL = ("commands", "deploy", "experiments", "cli.py", "report/watch.py")


def messages(path: Path) -> str:
    """All texts of a file but its docstrings."""
    tree = ast.parse((ROOT / path).read_text())
    documented = (node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
    docstrings = {id(node.body[0].value) for node in documented if node.body and isinstance(node.body[0], ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings)
    return "\n".join(node.value for node in texts if isinstance(node.value, str))


def test_every_option_that_a_message_names_has_an_argument() -> None:
    """A new message that reaches callers from Python needs its option in `ARGUMENTS`."""
    reaching = [path for path in FILES if not path.as_posix().startswith(AT_A_TERMINAL)]
    options = {option for path in reaching for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", messages(path))}
    assert len(options) > 10
    assert options - OTHER_PROGRAMS - ONLY_COMMANDS <= ARGUMENTS.keys()


@pytest.mark.parametrize(
    ("option", "argument"),
    [
        ("choose another folder (--out), or go on (--resume)", "choose another folder (out=), or go on (resume=True)"),
        ("choose another --out", "choose another out="),
        ("name it: --plugin FILE", "name it: plugins=FILE"),
        ("give it again: --plugin=my.py", "give it again: plugins=my.py"),
        ("--set 'a' is wrong", "settings='a' is wrong"),
        ("--input is (3,); choose", "input_shape is (3,); choose"),
        ("--which 'worst' is unknown", "which='worst' is unknown"),
        ("with --data-dir or HSFL_DATA", "with data.dir or HSFL_DATA"),
        ("a sweep without --plan-only; choose", "a sweep without plan_only=True; choose"),
        ("frameworks with -f", "frameworks with frameworks="),
        ("add -f fl, or leave it out", "add frameworks=fl, or leave it out"),
        ("ray start --head --port=1", "ray start --head --port=1"),
        ("runs/a--out is a file, x-f too", "runs/a--out is a file, x-f too"),
        ("the same command goes on", "the same call goes on"),
    ],
)
def test_options_become_arguments(option: str, argument: str) -> None:
    assert in_arguments(option) == argument


def test_the_kind_of_an_error_and_its_place_stay() -> None:
    def fails() -> None:
        raise DataMissing("it is not here; name it with --out")

    with raises(DataMissing, "name it with out=") as caught:
        speaks_of_arguments(fails)()
    assert caught.traceback[-1].name == "fails"


def test_one_mistake_in_both_tongues(tmp_path: Path) -> None:
    """What the command says of an option the call says of an argument."""
    (tmp_path / "full").write_text("something")
    names(refused("run", *tiny_words(), "--out", tmp_path / "full"), "--out")
    with raises(InputError, "(out=)"):
        hsfl.run(tiny(), tmp_path / "full")
    names(refused("run", "--set", "framework=mine"), "--plugin FILE")
    with raises(InputError, "plugins=FILE"):
        hsfl.run(framework="mine")
    with raises(InputError, "settings='rounds'"):
        hsfl.read_config(None, ["rounds"])
    with raises(InputError, "resume=True", "out="):
        hsfl.run(resume=True)
    with raises(InputError, "frameworks="):
        hsfl.sweep(tiny(), {"framework": ["fl", "hsfl"]}, out=tmp_path / "sweep")
    with raises(InputError, "plan=", "out=DIR"):
        hsfl.run(plan=tmp_path / "none")


def test_public_functions_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(hsfl.run)) is hsfl.run
    assert hsfl.run.__doc__


CHECKOUT = Path(__file__).parents[1]
DOCUMENTS = [
    *(CHECKOUT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile")),
    *(path for path in (CHECKOUT / "docs").glob("*.md") if path.name != "log.md"),
    *(CHECKOUT / "src/hsfl").rglob("*.py"),
]


@pytest.mark.parametrize("extra", ["plan", "report", "deploy", "export", "ray", "text", "tensorboard"])
def test_an_extra_is_installed_by_its_packages(extra: str) -> None:
    packages = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    command = install_extra(extra).replace("_", "-")
    assert command == " ".join(["pip install", *(f'"{package}"' for package in packages)]).replace("_", "-")


def test_what_everyone_needs_is_apart_from_extras() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
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
    assert [path.relative_to(CHECKOUT).as_posix() for path in DOCUMENTS if wrong.search(path.read_text())] == []


def test_a_wheel_is_named_by_its_version() -> None:
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
    wheels = {wheel for path in DOCUMENTS for wheel in re.findall(r"hsfl-[\w.]+-py3-none-any\.whl", path.read_text())}
    assert wheels == {f"hsfl-{version}-py3-none-any.whl"}
