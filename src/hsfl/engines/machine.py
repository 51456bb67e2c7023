"""The machine that trains: the versions, sources and plugins that must be the same on every machine of a run, and how many cores
this process may use.
"""

import hashlib
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hsfl import plugins

SOURCES = Path(__file__).parents[1]


@dataclass(frozen=True)
class Versions:
    """What a machine computes with."""

    python: str
    torch: str
    hsfl: str
    sources: str  # a hash of hsfl's files
    plugins: tuple[tuple[str, str], ...]  # file and hash, in the order in which they were loaded

    def difference(self, other: "Versions") -> str | None:
        """How another machine differs, in words; None if it does not."""
        for name, ours, theirs in (
            ("Python", self.python, other.python),
            ("torch", self.torch, other.torch),
            ("hsfl", self.hsfl, other.hsfl),
        ):
            if ours != theirs:
                return f"has {name} {theirs} and this machine {ours}; install the same version on both"
        if self.sources != other.sources:
            return f"has other files of hsfl {self.hsfl} than this machine; install the same ones on both"
        for (name, ours), (_, theirs) in zip(self.plugins, other.plugins):
            if ours != theirs:
                return f"has another plugin {name} (sha256 {theirs[:12]}, here {ours[:12]}); copy this machine's file there"
        return None


def versions() -> Versions:
    """The versions of this process, with the plugins that it has loaded."""
    loaded = tuple((plugin.name, plugin.sha256) for plugin in plugins.LOADED.values())
    return Versions(
        platform.python_version(), metadata.version("torch"), metadata.version("hsfl"), sources_sha256(), loaded
    )


def sources_sha256(root: Path = SOURCES) -> str:
    """A hash of the package's Python files and presets, by their names and contents: a checkout between two versions has no
    version number of its own."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in ("*.py", "*.toml") for path in root.rglob(pattern)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def num_cores() -> int:
    """The cores that this process may run on, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warn_of_cores(num_workers: int, num_threads: int, cores: int, say: Callable[[str], None]) -> None:
    """Warn if all workers together have more threads than there are cores: threads that wait for each other are slower
    than one.

    num_threads: of each worker. say: is told the warning.
    """
    if num_workers * num_threads > cores:
        threads = f" and engine.threads {num_threads}" if num_threads > 1 else ""
        say(
            f"engine.workers is {num_workers}{threads} but this machine has {cores} cores; the workers wait for each other"
        )
