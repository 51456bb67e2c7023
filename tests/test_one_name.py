"""A name has one meaning: no two classes of the package have the same name."""

import ast
from collections import defaultdict

from tests.test_imports import FILES, ROOT


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.as_posix()}:{node.lineno}")
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, f"these names stand for two things: {twice}"
