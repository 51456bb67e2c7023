"""The house: arrows between modules run one way, there are no cycles, and what needs no torch imports none."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hsfl
from tests.naming import raises

ROOT = Path(hsfl.__file__).parent
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
ARCHITECTURE = ROOT.parents[1] / "docs" / "architecture.md"
PUBLIC = {
    *("InputError", "RunConfig", "Scenario", "SplitModel", "allocate", "plan", "read_config", "run", "split"),
    *("register_codec", "register_dataset", "register_framework", "register_model", "register_policy", "register_task"),
    *("Codec", "Payload", "PayloadError"),  # for codecs of one's own
    *("Observer", "compare", "cost", "dataset", "evaluate", "open", "plan_check", "report", "sweep"),
    *("FrameworkBase", "HSFL", "POLICY_RULES", "RoundResult", "State", "Timing", "timeline"),  # for plugins
}
REPORT_READS = {
    "hsfl.allocation.policy_table",
    "hsfl.config",
    "hsfl.errors",
    "hsfl.files",
    "hsfl.formats",
    "hsfl.framework_table",
    "hsfl.network.clock",
    "hsfl.network.latency",
    "hsfl.runs.cuts_and_allocation",
    "hsfl.runs.run_folder.folder",
    "hsfl.runs.run_folder.records",
    "hsfl.runs.run_folder.round_phases",
    "hsfl.runs.run_folder.round_tables",
    "hsfl.tasks",
}


def module_of(path: Path) -> str:
    """models/zoo.py -> hsfl.models.zoo, models/__init__.py -> hsfl.models."""
    return ".".join(("hsfl", *path.with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def imported(path: Path) -> set[str]:
    """Every module that a file names in an import, wherever in the file: at the top, in a function, for types only."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports from {'.' * node.level}{node.module}; write hsfl in full"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in MODULES else str(node.module) for name in full}
    assert "hsfl" not in names, f"{path} imports from hsfl itself, which hides the arrow; name the module"
    return names


GRAPH = {name: imported(path) & MODULES.keys() - {name} for name, path in MODULES.items()}


def package_of(module: str) -> str:
    """hsfl.models.zoo -> models, hsfl.config -> config."""
    return module.split(".")[1]


def drawn_layers() -> list[list[str]]:
    """The arrows of docs/architecture.md: `a, b <- c` says that c may import a and b."""
    text = ARCHITECTURE.read_text()
    (line,) = re.findall(r"^    (errors <- .*(?:\n      .*)*)$", text, re.M)
    return [[name.strip() for name in layer.split(",")] for layer in line.split("<-")]


RANK = {name: rank for rank, layer in enumerate(drawn_layers()) for name in layer}


@pytest.mark.parametrize("module", MODULES)
def test_arrows_run_as_they_are_drawn(module: str) -> None:
    mine = package_of(module)
    assert mine in RANK, f"docs/architecture.md draws no place for {mine}"
    for name in GRAPH[module]:
        other = package_of(name)
        assert other == mine or RANK[other] < RANK[mine], f"{module} imports {name} against the arrows"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count: a circle is a circle."""
    left = {name: set(needs) for name, needs in GRAPH.items()}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    in_circles = {name for name in left if _reaches(name, name)}
    assert not in_circles, f"these import each other in a circle: {', '.join(sorted(in_circles))}"


def _reaches(start: str, goal: str) -> bool:
    seen, todo = set(), list(GRAPH[start])
    while todo:
        name = todo.pop()
        if name == goal:
            return True
        if name not in seen:
            seen.add(name)
            todo += GRAPH[name]
    return False


NO_TORCH = [name for name in MODULES if package_of(name) in ("network", "allocation", "planning")]


@pytest.mark.parametrize("module", NO_TORCH)
def test_torch_stops_at_the_cost_table(module: str) -> None:
    assert not any(name.split(".")[0] == "torch" for name in imported(MODULES[module]))


SLOW_TO_LOAD = re.compile(
    r"(sympy|torch\._dynamo|transformers|pyscipopt|ray|matplotlib|onnx|sklearn)\b"
)  # pymoo: a module of its own, imported late


@pytest.mark.parametrize("module", MODULES)
def test_what_is_slow_to_load_is_imported_in_functions(module: str) -> None:
    """A run that splits no model, for example, loads no sympy. What is imported for type checkers alone loads nothing."""
    top = ast.parse((ROOT / MODULES[module]).read_text()).body
    named = [alias.name for node in top if isinstance(node, ast.Import) for alias in node.names]
    named += [f"{node.module}.{alias.name}" for node in top if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert not [name for name in named if SLOW_TO_LOAD.match(name)]


@pytest.mark.parametrize("module", [name for name in MODULES if package_of(name) == "report"])
def test_a_report_reads_folders_and_nothing_else(module: str) -> None:
    others = {name for name in GRAPH[module] if package_of(name) != "report"}
    assert others <= REPORT_READS, f"{module} imports {', '.join(sorted(others - REPORT_READS))}"
    assert "torch" not in {name.split(".")[0] for name in imported(MODULES[module])}


def test_no_torch_where_none_is_needed() -> None:
    modules = [
        "hsfl",
        *(
            name
            for name in MODULES
            if package_of(name)
            in ("config", "errors", "plugins", "rng", "files", "formats", "framework_table", "codec_table")
        ),
    ]
    modules += ["hsfl.cli", "hsfl.models.cost_table", *(n for n in MODULES if package_of(n) in ("network", "planning"))]
    code = f"import sys, {', '.join(modules)}\nassert 'torch' not in sys.modules\nprint(dir(hsfl))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'read_config'" in done.stdout


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, hsfl.cli\nprint(sorted({'numpy', 'pydantic', 'torch', 'matplotlib', 'grpc'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_public_names_are_those_listed() -> None:
    assert set(hsfl.__all__) == PUBLIC
    assert set(dir(hsfl)) == PUBLIC | {"__version__"}
    for name in hsfl.__all__:
        assert getattr(hsfl, name) is not None
    with raises(AttributeError, "'rnu'"):
        hsfl.rnu  # noqa: B018


def test_plugins_take_every_name_from_hsfl_itself() -> None:
    """docs/extend.md names no folder of the package, so that files may move without breaking plugins."""
    text = (ROOT.parents[1] / "docs/extend.md").read_text()
    assert set(re.findall(r"\bhsfl\.(\w+(?:\.\w+)*)", text)) <= PUBLIC
    assert not re.findall(r"from hsfl", text)


def test_editors_see_the_names_where_they_are_loaded_from() -> None:
    """What is imported for type checkers is what `_HOMES` loads, and the file defines nothing else that is public."""
    tree = ast.parse((ROOT / "__init__.py").read_text())
    (for_types,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: str(node.module) + (f":{alias.name}" if alias.asname else "")
        for node in for_types.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == hsfl._HOMES
    assert seen.keys() == PUBLIC
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    defined |= {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert not {name for name in defined if not name.startswith("_")}


AS_TEXT = {  # files that name code as text, "module:name", which is imported when it is needed; and why
    "codec_table.py": "a row names the class that encodes, so that clocks and plans need no torch",
    "framework_table.py": "a row names the class that trains, so that the table needs no torch",
    "models/recipes.py": "a recipe names the function that builds the model, so that the table needs no torch",
    "plugins.py": "a name is looked up in the tables of built-in names before an installed plugin is imported for it",
}


def names_as_text(path: Path) -> set[str]:
    """The texts such as "hsfl.models.zoo:cnn" in a file."""
    texts = (node.value for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and re.fullmatch(r"hsfl(\.\w+)+:\w+", text)}


@pytest.mark.parametrize("path", FILES, ids=str)
def test_code_is_named_as_text_in_few_places(path: Path) -> None:
    """Such a name is an arrow that the graph above does not see."""
    named = names_as_text(path)
    assert bool(named) == (path.as_posix() in AS_TEXT), f"{path} names {', '.join(named) or 'nothing'} as text"
    assert {text.partition(":")[0] for text in named} <= MODULES.keys()
