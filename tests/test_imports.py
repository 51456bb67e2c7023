"""Arrows between modules run one way, and what needs no torch imports none."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hsfl

ROOT = Path(hsfl.__file__).parent
LAYERS = (  # each may import from its own layer and from those above it in this list
    {"config", "rng", "records", "errors", "presets"},
    {"models", "data"},
    {"network"},
    {"allocation"},
    {"training", "frameworks"},
    {"deploy"},
    {"cli", "report", "export", "progress", "compare", "commands", "experiments"},
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def package_of(path: Path) -> str:
    """config.py -> config, models/zoo.py -> models."""
    return path.parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Every module that a file names in an import, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports from {'.' * node.level}{node.module}; write hsfl in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=str)
def test_arrows_run_one_way(path):
    assert package_of(path) in RANK, f"give {package_of(path)} a place in LAYERS"
    for name in imported(path):
        first, *rest = name.split(".")
        if first == "hsfl" and rest:
            assert rest[0] in RANK, f"{path} imports {name}, which has no place in LAYERS"
            assert RANK[rest[0]] <= RANK[package_of(path)], f"{path} imports {name} against the arrows"


@pytest.mark.parametrize("path", [path for path in FILES if package_of(path) in ("network", "allocation")], ids=str)
def test_torch_stops_at_the_cost_table(path):
    assert not any(name.split(".")[0] == "torch" for name in imported(path))


def test_no_torch_where_none_is_needed():
    modules = ["hsfl", "hsfl.config", "hsfl.runs.folder", "hsfl.errors", "hsfl.rng", "hsfl.cli"]
    modules += ["hsfl.models.cost", *(f"hsfl.network.{path.stem}" for path in (ROOT / "network").glob("[a-z]*.py"))]
    code = f"import sys, {', '.join(modules)}\nassert 'torch' not in sys.modules\nprint(dir(hsfl))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'read_config'" in done.stdout


def test_public_names_are_there():
    assert {"run", "read_config", "RunConfig", "split", "SplitModel", "InputError"} <= set(hsfl.__all__)
    for name in hsfl.__all__:
        assert getattr(hsfl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'rnu'"):
        hsfl.rnu  # noqa: B018
