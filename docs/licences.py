"""Writes docs/licences.md: the licence of every package of constraints.txt, as its installed metadata say.

pip install -c constraints.txt -e '.[all,text,transformers]' --group dev --group slow
python docs/licences.py
"""

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
EXTRAS = ("", "plan", "report", "deploy", "demo", "export", "tensorboard", "ray", "text", "transformers")
MIT_GRANT = "Permission is hereby granted, free of charge, to any person"
HEAD = """# Licences

HSFL is Apache-2.0. Its wheel holds no code of others. These are the packages of `constraints.txt`, which the tests run with, with the licence that each names in its own metadata.
*Needed by*: `hsfl` for what everybody installs, else the first extra that brings the package, else `contributors`.

Written by `python docs/licences.py`. The wheels of some packages hold further libraries under licences of their own: torch's builds for CUDA bring NVIDIA's (proprietary, redistributable),
PySCIPOpt's SCIP (Apache-2.0), SciPy's and NumPy's OpenBLAS (BSD-3-Clause) and parts of GCC's runtime (GPL-3.0 with its exception).

| package | licence | needed by |
| --- | --- | --- |
"""


def pinned() -> list[str]:
    """Names of the packages of constraints.txt, in its order."""
    return re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.M)


def licence(name: str) -> str:
    """The SPDX expression, else the classifiers, else the field: its first line, or MIT where its text is that licence's."""
    about = metadata.metadata(name)
    if expression := about.get("License-Expression"):
        return expression
    classifiers = [text.split(" :: ")[-1] for text in about.get_all("Classifier", []) if text.startswith("License ::")]
    named = [text for text in classifiers if text != "OSI Approved"]
    text = (about.get("License") or "not named").strip()
    return ", ".join(named) or ("MIT" if MIT_GRANT in " ".join(text.split()) else text.splitlines()[0])


def closure(name: str, extra: str = "") -> Iterator[str]:
    """What a package with an extra needs, through all packages that are installed."""
    waiting, seen = [(canonicalize_name(name), extra)], set()
    while waiting:
        package, wanted = waiting.pop()
        if (package, wanted) in seen:
            continue
        seen.add((package, wanted))
        yield package
        try:
            needs = [Requirement(text) for text in metadata.requires(package) or []]
        except metadata.PackageNotFoundError:
            continue
        for need in needs:
            if need.marker is None or need.marker.evaluate({"extra": wanted}):
                waiting += [(canonicalize_name(need.name), each) for each in ("", *sorted(need.extras))]


def main() -> None:
    """Write the file, or say which packages are missing here."""
    needed_by: dict[str, str] = {}
    for extra in EXTRAS:
        for package in closure("hsfl", extra):
            needed_by.setdefault(package, f"`{extra or 'hsfl'}`")
    rows, missing = [], []
    for name in pinned():
        try:
            rows.append(f"| {name} | {licence(name)} | {needed_by.get(canonicalize_name(name), 'contributors')} |")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        sys.exit(
            f"not installed here: {', '.join(missing)}; the first lines of {Path(__file__).name} say how to install all"
        )
    (ROOT / "docs/licences.md").write_text(HEAD + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
