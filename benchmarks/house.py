"""A mirror of the source tree, for one checkout or for two beside each other: python benchmarks/house.py [OLD] [NEW] [--json]

Reads src/hsfl and tests as text and imports neither, so that any two checkouts can be compared. What a figure counts is
said at the function that makes it. The figures are a mirror, not a target.
"""

import argparse
import ast
import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = "hsfl"
PRONOUNS = frozenset(  # words that stand for a thing without naming it
    ["each", "found", "here", "kept", "line", "mine", "now", "one", "own", "part", "said", "says", "told", "words"]
)
SENTENCE_WORDS = 3  # a text of so many words is a sentence
PART_WORDS = 5  # at most, of what an error names
SHOWN = 10  # of a list, on the table
Figures = dict[str, Any]


@dataclass(frozen=True)
class Module:
    """A file of the package. name: dotted, such as hsfl.models.zoo. path: below the package's folder."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def num_lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


def read_modules(checkout: Path) -> list[Module]:
    root = checkout / "src" / PACKAGE
    if not root.is_dir():
        raise SystemExit(f"{checkout} has no src/{PACKAGE}; name the folder of a checkout")
    modules = []
    for file in sorted(root.rglob("*.py")):
        path, text = file.relative_to(root), file.read_text()
        name = ".".join((PACKAGE, *path.with_suffix("").parts)).removesuffix(".__init__")
        modules.append(Module(name, path, text, ast.parse(text)))
    return modules


def sizes(modules: list[Module]) -> Figures:
    """Lines of every kind. A folder's files are those right in it, without `__init__.py`."""
    lengths = sorted(module.num_lines for module in modules if not module.is_package)
    folders = Counter(module.path.parent.as_posix() for module in modules if not module.is_package)
    longest = max(modules, key=lambda module: module.num_lines)
    return {
        "modules": len(modules),
        "lines": sum(module.num_lines for module in modules),
        "files in the largest folder": max(folders.values()),
        "largest folders": [f"{folder} {count}" for folder, count in folders.most_common(5)],
        "lines of a file, median": statistics.median(lengths),
        "lines of a file, p90": lengths[round(0.9 * (len(lengths) - 1))],
        "lines of the longest file": longest.num_lines,
        "longest file": longest.path.as_posix(),
    }


def import_graph(modules: list[Module]) -> dict[str, set[str]]:
    """Which modules of the package each module imports, wherever the import stands. The package itself, which only
    passes names on, is left out."""
    names = {module.name for module in modules} - {PACKAGE}
    graph: dict[str, set[str]] = {}
    for module in modules:
        imported: set[str] = set()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(module, node)
                full_names = {f"{base}.{alias.name}" for alias in node.names}
                imported |= {full if full in names else base for full in full_names}
        graph[module.name] = imported & names - {module.name}
    graph.pop(PACKAGE, None)
    return graph


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    """The full name of the module behind `from`, relative or not."""
    if not node.level:
        return str(node.module)
    parts = module.name.split(".")
    parts = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*parts, node.module] if node.module else parts)


def import_circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The sets of modules that reach each other."""
    reached = {name: _reachable(graph, name) for name in graph}
    circles = {
        frozenset(other for other in graph if other in reached[name] and name in reached[other]) for name in graph
    }
    return sorted(sorted(circle) for circle in circles if circle)


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph[name]
    return reached


def longest_chain(graph: Mapping[str, set[str]], circles: list[list[str]]) -> list[str]:
    """The longest row of modules of which each imports the next. A circle counts as its first module."""
    leader = {name: circle[0] for circle in circles for name in circle}
    arrows: dict[str, set[str]] = defaultdict(set)
    for name, others in graph.items():
        start = leader.get(name, name)
        arrows[start] |= {leader.get(other, other) for other in others} - {start}

    @cache
    def chain(name: str) -> tuple[str, ...]:
        return (name, *max((chain(other) for other in sorted(arrows[name])), key=len, default=()))

    return list(max((chain(name) for name in sorted(arrows)), key=len))


def imports(modules: list[Module]) -> Figures:
    """The import graph, and the share of all lines that belong to import statements."""
    graph = import_graph(modules)
    circles = import_circles(graph)
    chain = longest_chain(graph, circles)
    statements = (node for module in modules for node in ast.walk(module.tree))
    import_lines = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in statements
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    return {
        "imports of a module, mean": round(statistics.fmean(len(names) for names in graph.values()), 2),
        "longest import chain": len(chain),
        "the chain": chain,
        "import circles": len(circles),
        "modules in circles": [" ".join(circle) for circle in circles],
        "lines that are imports, %": _percent(import_lines, sum(module.num_lines for module in modules)),
    }


def homes(modules: list[Module]) -> Figures:
    """Names that live in several places: files (`__init__` and `__main__` apart), and public top-level functions. Functions
    that look public are those whose name, module and folders begin with no underscore; exported are the names of
    `hsfl.__all__`."""
    files, functions = defaultdict(list), defaultdict(list)
    for module in modules:
        if not module.path.stem.startswith("__"):
            files[module.path.stem].append(module.path.as_posix())
        for node in module.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                functions[node.name].append(module.path.as_posix())
    hidden = {module.path.as_posix() for module in modules if any(_is_hidden(name) for name in module.path.parts)}
    crowded_files = {name: paths for name, paths in files.items() if len(paths) > 1}
    crowded = sorted(
        (name for name, paths in functions.items() if len(paths) > 1), key=lambda n: (-len(functions[n]), n)
    )
    return {
        "file names with several homes": len(crowded_files),
        "those file names": [f"{name}: {' '.join(paths)}" for name, paths in sorted(crowded_files.items())],
        "functions with several homes": len(crowded),
        "the worst functions": [f"{name} {len(functions[name])}" for name in crowded[:SHOWN]],
        "functions that look public": sum(path not in hidden for paths in functions.values() for path in paths),
        "names exported": len(_exported(modules)),
    }


def _is_hidden(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _exported(modules: list[Module]) -> list[str]:
    """What `hsfl.__all__` lists."""
    for module in modules:
        for node in module.tree.body if module.name == PACKAGE else ():
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
            ):
                return list(ast.literal_eval(node.value))
    return []


def assigned_names(tree: ast.AST) -> Iterator[str]:
    """Every name that a value is bound to: assignments, loops, comprehensions, `with`, `:=`, and parameters but `self`. Names that
    begin with an underscore count without it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id.lstrip("_")
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg.lstrip("_")


def names(modules: list[Module]) -> Figures:
    counts = Counter(name for module in modules for name in assigned_names(module.tree))
    pronouns = Counter({name: count for name, count in counts.items() if name in PRONOUNS})
    return {
        "names assigned": counts.total(),
        "of them pronouns": pronouns.total(),
        "of them pronouns, %": _percent(pronouns.total(), counts.total()),
        "the pronouns": [f"{name} {count}" for name, count in pronouns.most_common()],
    }


def raises(modules: list[Module]) -> Figures:
    """Raise statements for 1,000 lines of code, which are lines that are not empty and no comment or docstring."""
    count = sum(isinstance(node, ast.Raise) for module in modules for node in ast.walk(module.tree))
    code_lines = sum(_code_lines(module) for module in modules)
    return {
        "lines of code": code_lines,
        "raises": count,
        "raises of 1,000 lines of code": round(1e3 * count / code_lines, 1),
    }


def _code_lines(module: Module) -> int:
    docstrings: set[int] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    texts = enumerate(module.text.splitlines(), 1)
    return sum(bool(text.strip()) and text.lstrip()[0] != "#" and number not in docstrings for number, text in texts)


def sentence_tests(checkout: Path) -> Figures:
    """Tests (functions `test_*`) that compare a sentence: a text of at least three words in `match=` of `pytest.raises` or
    `pytest.warns`, or on a side of a comparison that is asserted; or a part that `names` or `raises` of tests/naming.py
    refuses. A parameter stands for its column in `pytest.mark.parametrize`, if the table is in the decorator or a
    variable of the file. What another variable or another function holds is not seen."""
    num_tests = count = 0
    for file in sorted((checkout / "tests").rglob("test_*.py")):
        tree = ast.parse(file.read_text())
        tables = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                num_tests += 1
                count += _compares_a_sentence(node, tables)
    return {
        "tests": num_tests,
        "tests that compare sentences": count,
        "such tests, %": _percent(count, num_tests),
    }


def _compares_a_sentence(function: ast.FunctionDef | ast.AsyncFunctionDef, tables: Mapping[str, ast.expr]) -> bool:
    columns = _columns(function.decorator_list, tables)
    for compared, is_sentence in _compared(function):
        cells = [cell for name in _variables(compared) for cell in columns[name]]
        if any(is_sentence(text) for text in (_text(compared), *map(_text, cells))):
            return True
    return False


def _compared(function: ast.AST) -> Iterator[tuple[ast.expr, Callable[[str], bool]]]:
    """What is compared, and which texts are sentences there."""
    for node in ast.walk(function):
        if isinstance(node, ast.keyword) and node.arg == "match":
            yield node.value, _is_sentence
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("names", "raises"):
            yield from ((part, _is_long_part) for part in node.args[1:])
        elif isinstance(node, ast.Assert):
            comparisons = (inner for inner in ast.walk(node.test) if isinstance(inner, ast.Compare))
            yield from (
                (side, _is_sentence) for compare in comparisons for side in (compare.left, *compare.comparators)
            )


def _columns(decorators: list[ast.expr], tables: Mapping[str, ast.expr]) -> Mapping[str, list[ast.expr]]:
    """The cells of every parameter; a cell that is a tuple of texts gives each of them."""
    columns = defaultdict(list)
    for decorator in decorators:
        if not (isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("mark.parametrize")):
            continue
        header, table = decorator.args[:2]
        names = re.findall(r"\w+", _text(header)) or [_text(name) for name in _elements(header)]
        for row in _elements(tables.get(ast.unparse(table), table)):
            is_param = isinstance(row, ast.Call) and ast.unparse(row.func) == "pytest.param"
            cells = row.args if is_param else [row] if len(names) == 1 else _elements(row)
            for name, cell in zip(names, cells):
                columns[name] += _elements(cell) or [cell]
    return columns


def _elements(node: ast.expr) -> list[ast.expr]:
    """Of a list or a tuple; else none."""
    return node.elts if isinstance(node, ast.List | ast.Tuple) else []


def _pieces(node: ast.AST) -> list[ast.expr]:
    """What a text is joined of."""
    match node:
        case ast.JoinedStr(values=pieces):
            return pieces
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.Starred(value=piece) | ast.FormattedValue(value=piece):
            return [piece]
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr="escape"), args=pieces):
            return pieces
    return []


def _variables(node: ast.AST) -> list[str]:
    """The variables that a text is joined of."""
    return [node.id] if isinstance(node, ast.Name) else [name for piece in _pieces(node) for name in _variables(piece)]


def _text(node: ast.AST) -> str:
    """The constant text of an expression; a value in an f-string is a word."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.FormattedValue):
        return "value"
    return "".join(_text(piece) for piece in _pieces(node))


def _is_sentence(text: str) -> bool:
    return len(re.findall(r"(?<!\S)\W*[^\W\d_]{2,}", text)) >= SENTENCE_WORDS


def _is_long_part(part: str) -> bool:
    """As tests/naming.py sees it."""
    return "; " in part or len(part.split()) > PART_WORDS


def _percent(count: int, total: int) -> float:
    return round(100 * count / total, 2) if total else 0.0


def mirror(checkout: Path, with_tests: bool = True) -> Figures:
    """All figures of a checkout."""
    modules = read_modules(checkout)
    figures = sizes(modules) | imports(modules) | homes(modules) | names(modules) | raises(modules)
    return figures | (sentence_tests(checkout) if with_tests else {})


def table(columns: Mapping[str, Figures]) -> str:
    """Numbers as rows, checkouts as columns; below, the lists of each checkout."""
    first = next(iter(columns.values()))
    numbers = [name for name, value in first.items() if isinstance(value, int | float)]
    lists = [name for name in first if name not in numbers]
    width, widths = max(map(len, numbers)), {title: max(10, len(title)) for title in columns}
    rows = [" " * width + "".join(f"  {title:>{widths[title]}}" for title in columns)]
    for name in numbers:
        cells = (f"  {figures[name]:>{widths[title]},}" for title, figures in columns.items())
        rows.append(f"{name:<{width}}" + "".join(cells))
    for title, figures in columns.items():
        rows += ["", title]
        for name in lists:
            value = figures[name]
            joined = value if isinstance(value, str) else ", ".join(value) or "none"
            rows.append(f"  {name}: {joined}")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs="*", help="one or two checkouts; else this one")
    parser.add_argument("--json", action="store_true", help="print JSON, with full lists")
    parser.add_argument("--quick", action="store_true", help="leave the tests out")
    arguments = parser.parse_args()
    checkouts = arguments.checkouts or [Path(__file__).resolve().parents[1]]
    titles = [checkout.resolve().name for checkout in checkouts]
    if len(set(titles)) < len(titles):
        titles = [str(checkout) for checkout in checkouts]
    columns = {title: mirror(checkout, not arguments.quick) for title, checkout in zip(titles, checkouts)}
    print(json.dumps(columns, indent=1) if arguments.json else table(columns))


if __name__ == "__main__":
    main()
