"""The files that docs/extend.md shows, small plugins to write, and how to forget those that were loaded."""

import re
import shlex
from pathlib import Path

from hsfl import plugins

DOC = Path(__file__).parents[2] / "docs" / "extend.md"
BLOCKS = re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", DOC.read_text(), re.M | re.S)
COMMANDS = [shlex.split(line.removeprefix("    hsfl ")) for line in re.findall(r"^    hsfl .*$", DOC.read_text(), re.M)]
TWICE = """
import hsfl
from hsfl.frameworks.copy_per_client import {base}


class Twice({base}):
    pass


hsfl.register_framework("{name}", Twice{more})
"""


def unload() -> None:
    """Forget everything that was registered, as if no plugin had been loaded."""
    for registered in plugins.REGISTERED.values():
        registered.forget()
    for table in (plugins.REGISTERED, plugins.LOADED, plugins.FILES):
        table.clear()


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def twice(path: Path, base: str = "HSFL", name: str = "twice", more: str = "") -> Path:
    """A plugin whose framework is a built-in one under another name."""
    return write(path, TWICE.format(base=base, name=name, more=more))
