"""docs/architecture.md is true: its names are there, each step of a walk calls the next, and its pictures are today's."""

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "hsfl"
TEXT = (ROOT / "docs" / "architecture.md").read_text()
PLACE = r"([\w/]+\.py):([\w.]+)"
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Step:
    """A step of a walk. wire: the word by which it is reached over the wire; empty where `caller` calls it."""

    path: str
    name: str
    caller: "Step | None"
    wire: str

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


def read_walks() -> dict[str, list[Step]]:
    """The steps of each walk in their order. A step's caller is the nearest step above it that stands further left."""
    walks: dict[str, list[Step]] = {}
    for section in re.split(r"^### ", TEXT, flags=re.M)[1:]:
        title, _, body = section.partition("\n")
        open_steps: list[Step] = []
        walks[title] = []
        for indent, path, name, wire in re.findall(rf"^( *)- `{PLACE}`(?:, over the wire by `(\w+)`)?: \S", body, re.M):
            del open_steps[len(indent) // 2 :]
            assert len(open_steps) == len(indent) // 2, f"{path}:{name} stands too far right"
            open_steps.append(Step(path, name, open_steps[-1] if open_steps else None, wire))
            walks[title].append(open_steps[-1])
        assert len(walks[title]) == len(re.findall(r"^ *- ", body, re.M)), f"a line of {title} is not a step"
    return walks


WALKS = read_walks()


@cache
def tree_of(path: str) -> ast.Module:
    return ast.parse((SOURCE / path).read_text())


def find(path: str, name: str) -> ast.AST | None:
    """What a name such as `Link.carry` or `KINDS` stands for in a file."""
    scope: ast.AST = tree_of(path)
    for part in name.split("."):
        found = next((node for node in getattr(scope, "body", ()) if part in names_defined(node)), None)
        if found is None:
            return None
        scope = found
    return scope


def names_defined(node: ast.AST) -> list[str]:
    if isinstance(node, Definition):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def names_used(node: ast.AST) -> set[str]:
    """Every name and attribute in a piece of code; not the words of strings."""
    names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return names | {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}


def helpers(*paths: str) -> Iterator[tuple[str, ast.AST]]:
    """What a call may pass through: private functions and methods of the first file, tables (in capitals) of all files."""
    for node in ast.walk(tree_of(paths[0])):
        if isinstance(node, Definition) and node.name.startswith("_") and not node.name.startswith("__"):
            yield node.name, node
    for path in paths:
        for node in tree_of(path).body:
            yield from ((name, node) for name in names_defined(node) if name.isupper())


def names_reached(caller: Step, callee: Step) -> set[str]:
    """What the caller uses, itself or through helpers."""
    code = find(caller.path, caller.name)
    assert code is not None, f"{caller} is not there"
    reached, passed = names_used(code), set[ast.AST]()
    while more := [n for name, n in helpers(caller.path, callee.path) if name in reached and n not in passed]:
        passed.update(more)
        reached = reached.union(*map(names_used, more))
    return reached


def words_in(step: Step) -> set[str]:
    """Names and string constants of a step's code."""
    code = find(step.path, step.name)
    assert code is not None, f"{step} is not there"
    texts = {node.value for node in ast.walk(code) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return names_used(code) | texts


def test_the_five_walks_are_there() -> None:
    assert list(WALKS) == ["run", "plan", "allocate", "a smashed tensor on the wire", "a report"]
    assert all(len(steps) > 10 for steps in WALKS.values())


@pytest.mark.parametrize(("path", "name"), sorted(set(re.findall(f"`{PLACE}`", TEXT))))
def test_every_name_is_there(path: str, name: str) -> None:
    assert (SOURCE / path).is_file(), f"there is no {path}"
    assert find(path, name) is not None, f"{path} has no {name}"


def test_every_file_is_there() -> None:
    paths = re.findall(r"`([\w/]+/[\w/]+\.(?:py|js))`", TEXT)
    assert [path for path in paths if not (SOURCE / path).is_file() and not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("walk", WALKS)
def test_each_step_calls_the_next(walk: str) -> None:
    steps = WALKS[walk]
    for place, step in enumerate(steps):
        if step.caller is not None:
            called = step.name.rpartition(".")[2]
            assert called in names_reached(step.caller, step), f"{step.caller} does not call {step}"
        elif place:
            assert step.wire in words_in(step), f"{step} does not say {step.wire!r}"
            before = (other for other in steps[:place] if str(other) != str(step))
            assert any(step.wire in words_in(other) for other in before), f"no step before {step} says {step.wire!r}"


def place_of_call(caller: Step, name: str) -> int | None:
    """The line of the caller's own code that first says the name; None where only helpers say it."""
    code = find(caller.path, caller.name)
    assert code is not None
    lines = [
        node.lineno
        for node in ast.walk(code)
        if (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
    ]
    return min(lines, default=None)


@pytest.mark.parametrize("walk", WALKS)
def test_steps_of_one_caller_stand_in_their_order(walk: str) -> None:
    last: dict[Step, tuple[int, Step]] = {}
    for step in WALKS[walk]:
        if step.caller is None or (line := place_of_call(step.caller, step.name.rpartition(".")[2])) is None:
            continue
        before, other = last.get(step.caller, (0, step))
        assert before <= line, f"{step.caller} calls {step} before {other}"
        last[step.caller] = line, step


@pytest.fixture(scope="module")
def script() -> Any:
    path = ROOT / "docs" / "figures" / "architecture.py"
    spec = importlib.util.spec_from_file_location("architecture_figures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def test_the_pictures_are_as_the_source_is_today(script: Any) -> None:
    for name, picture in script.draw_all().items():
        committed = (ROOT / "docs" / "figures" / name).read_text()
        assert committed == picture, f"docs/figures/{name} is out of date; run python docs/figures/architecture.py"


def test_the_picture_of_a_deployment_names_messages_of_the_protocol(script: Any) -> None:
    kinds = find("deploy/wire/messages.py", "KINDS")
    assert kinds is not None
    assert {message for _, _, message, _ in script.MESSAGES} <= names_used(kinds)


def test_arrows_that_follow_from_others_are_left_out(script: Any) -> None:
    graph = {"hsfl.c.x": {"hsfl.b.y", "hsfl.a"}, "hsfl.b.y": {"hsfl.a", "hsfl.b.z"}, "hsfl.b.z": set(), "hsfl.a": set()}
    box_of = {"a": "single files", "b": "b", "c": "c"}
    assert script.folder_arrows(graph, box_of) == {"single files": set(), "b": {"single files"}, "c": {"b"}}
