"""`report.html`: one page that holds all it needs and works without a network.

Text from folders reaches the page as JSON inside a script element that is not run, and is put into the document as text,
never as markup. The page's policy allows its own scripts alone.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from hsfl.files import write_atomic
from hsfl.report.page_data import page_data
from hsfl.report.page_sources import read_sources

QUOTED = {True: "'self'", False: "'none'"}
SCRIPTS = ("base.js", "curves.js", "gantt.js", "tables.js", "sweep.js", "main.js")


def write_page(paths: Sequence[str | Path], out: str | Path) -> Path:
    """The page of these folders (runs, comparisons, plans) as one file."""
    data = page_data(read_sources(paths))
    for sweep in data["sweeps"]:
        folder = Path(sweep["folder"])
        beside = folder.resolve() == Path(out).parent.resolve()
        sweep["linked"] = beside and all((folder / one["folder"] / "report.html").exists() for one in sweep["points"])
    text = render(data)
    write_atomic(Path(out), lambda scratch: scratch.write_bytes(text.encode("utf-8", "replace")))
    return Path(out)


def render(data: dict[str, Any], watch: bool = False) -> str:
    """The page as text; with `watch` it asks its server for news."""
    script = "\n".join(_asset(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "TITLE": html.escape(str(data["title"])),
        "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        f"img-src data:; connect-src {QUOTED[watch]}; base-uri 'none'; form-action 'none'",
        "STYLE": _asset("page.css"),
        "WATCH": "yes" if watch else "no",
        "DATA": safe_json(data),
        "SCRIPT": script,
    }
    return re.sub(r"%%([A-Z]+)%%", lambda match: parts[match[1]], _asset("page.html"))


def waiting_data(reason: str) -> dict[str, Any]:
    """The page's JSON while there is nothing to show: it says why, and the page asks until there is something."""
    nothing: dict[str, Any] = {name: [] for name in ("runs", "series", "settings", "plans", "sweeps", "sharing")}
    return nothing | {"title": "No run is there yet", "waiting": reason, "target": None, "tables": None}


def safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever its strings hold."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", text)


@cache
def _asset(name: str) -> str:
    return resources.files("hsfl.report").joinpath("assets", name).read_text("utf-8")
