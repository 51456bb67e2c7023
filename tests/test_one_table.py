"""A framework is one row of `hsfl.framework_table`: no other file tests a framework's name or class, or lists names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hsfl
from hsfl.framework_table import METHODS
from tests.test_imports import FILES, ROOT

PACKAGE = "hsfl"  # also the name of a framework, so that this word alone proves nothing
POLICIES = (
    "allocation/policy_table.py",
    "planning/rounds/cpsl_policy.py",
    "experiments/latency/fig5.py",
    "experiments/latency/latency_report.py",
)
LISTS = {  # files that may name frameworks, and why
    "commands/self_test.py": "the two frameworks that must train the same model to the bit",
    "config/options.py": "the options of the built-in frameworks, checked before any framework is known",
    "experiments/table1/columns.py": "the columns of the paper's table",
    "experiments/fig1.py": "the three charts of the paper's figure",
    "experiments/fig3.py": "the curves that the paper's claim names",
    "experiments/norms.py": "the trainings whose statistics are averaged, all of them or those of heads",
    "experiments/table1/table1_report.py": "the paper's accuracies",
    "experiments/table1/tau_row.py": "the columns that are trained again",
} | dict.fromkeys(POLICIES, "policies that are named after their frameworks")
CLASSES = {str(row.code).rpartition(":")[2] for row in METHODS.values()}


def names(node: ast.AST) -> Iterator[str]:
    """The frameworks that an expression names: itself, or as parts of a tuple, a list or a set."""
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    yield from (part.value for part in parts if isinstance(part, ast.Constant) and part.value in METHODS)


def mistakes(path: str, source: str) -> list[str]:
    """What a file says that only the table may say, each with its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            tested = [name for part in (node.left, *node.comparators) for name in names(part)]
            found += [f"{path}:{node.lineno} tests for {name!r}" for name in tested]
        elif isinstance(node, ast.MatchValue):
            found += [f"{path}:{node.lineno} tests for {name!r}" for name in names(node.value)]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            kinds = {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(node.args[1])}
            found += [f"{path}:{node.lineno} tests for the class {kind}" for kind in kinds & CLASSES]
        elif isinstance(node, ast.Constant) and node.value in METHODS and node.value != PACKAGE and path not in LISTS:
            found.append(f"{path}:{node.lineno} names {node.value!r}")
    return found


@pytest.mark.parametrize("path", [path.as_posix() for path in FILES if path.name != "framework_table.py"])
def test_frameworks_are_named_in_the_table_alone(path: str) -> None:
    assert mistakes(path, (ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        'FRAMEWORKS = ("hsfl", "fsl")',
        'if config.framework == "hsfl": pass',
        'if config.framework in ("hsfl", other): pass',
        'match name:\n    case "hsfl": pass',
        "isinstance(framework, HSFL)",
        "isinstance(framework, (parallel.FSL, int))",
        'clock("psl")',
    ],
)
def test_the_guard_sees(source: str) -> None:
    assert len(mistakes("report/some.py", source)) == 1


def test_what_may_name_frameworks_is_there() -> None:
    assert all((Path(hsfl.__file__).parent / path).exists() for path in LISTS)
