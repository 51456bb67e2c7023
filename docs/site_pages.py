"""What the site adds to the Markdown of this folder: the commands and the Python names, read from the code; links where a page
names another one; and llms.txt, a list of all pages for programs that read.

A page with the line `<!-- commands -->` or `<!-- python -->` gets them in its place, so that nothing that is generated is kept.
"""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.inspect import signature, stringify_signature
from sphinx.util.nodes import clean_astext

import hsfl

ROOT = Path(__file__).parents[1]
ARGUMENT = re.compile(r"^((?:[a-z_]+, )*[a-z_]+): ")
INCLUDED = re.compile(r"```\{include\} \.\./(\w+\.md)\n```")
PAGE = re.compile(r"\bdocs/([a-z_-]+)\.md\b")
LLMS = """# HSFL

> Unequal edge devices train one neural network together without sharing their data, and know how long it takes. A simulator, a
> planner and a deployment of split and federated training (Heterogeneous Split Federated Learning).

## Pages, as Markdown
"""


# Commands


def commands_page() -> str:
    """Every command with its arguments and options, as Typer writes it in Markdown."""
    typer_docs = [sys.executable, "-m", "typer", "hsfl.cli", "utils", "docs", "--name", "hsfl"]
    text = subprocess.run(typer_docs, check=True, capture_output=True, text=True).stdout
    text = text.partition("\n## ")  # what comes first is a list of what comes next
    return (text[1] + text[2]).replace("```console\n$ ", "```none\n").replace("**Usage**:\n\n", "")


# Python names


def python_page() -> str:
    """Every public name of the package with its signature and docstring, as Markdown in directives of the Python domain."""
    return "\n".join(
        description(name, getattr(hsfl, name)) for name in sorted(hsfl.__all__, key=str.lower) if name != "POLICY_RULES"
    )


def description(name: str, thing: Any, kind: str = "") -> str:
    """One name as a directive, a class with its public methods inside."""
    kind = kind or ("class" if inspect.isclass(thing) else "function")
    parameters = signature(thing, bound_method=kind == "method") if kind != "class" or is_dataclass(thing) else None
    shown = name + (stringify_signature(parameters, show_annotation=False) if parameters else "")
    fence, body = ":::", [markdown_of(inspect.getdoc(thing) if own_docstring(thing) else "", parameters)]
    if kind == "class":
        fence = "::::"
        for key, value in vars(thing).items():
            function = getattr(value, "__func__", value)
            if not key.startswith("_") and inspect.isfunction(function) and function.__doc__:
                body.append(description(key, function, "method"))
    return f"{fence}{{py:{kind}}} {shown}\n" + "\n".join(body) + f"\n{fence}\n"


def own_docstring(thing: Any) -> bool:
    """Whether somebody wrote the docstring: dataclasses write one, too."""
    return bool(thing.__doc__) and not thing.__doc__.startswith(f"{thing.__name__}(")


def markdown_of(docstring: str, parameters: inspect.Signature | None) -> str:
    """A docstring whose `name: meaning` sentences are a list, and what follows them a paragraph."""
    docstring = docstring.replace("[K]", r"\[K\]")
    for name in parameters.parameters if parameters else {}:  # names that begin a sentence begin a line
        docstring = re.sub(rf"(?<=[.;]) (?=(?:\w+, )*{name}: )", "\n", docstring)
    lines: list[str] = []
    for line in docstring.splitlines():
        if ARGUMENT.match(line):
            line = ARGUMENT.sub(r"- **\1**: ", line)
        elif lines and line[:1].isupper() and lines[-1].endswith("."):
            lines.append("")
        lines.append(line)
    return "\n".join(lines) + "\n"


# Pages that name each other


class LinksToPages(SphinxTransform):
    """`docs/deploy.md` in a text becomes a link to that page."""

    default_priority = 100

    def apply(self, **kwargs: Any) -> None:
        for text in list(self.document.findall(nodes.Text)):
            literal = text.parent
            inside = [type(parent) for parent in ancestors(text)]
            if {nodes.literal_block, nodes.reference, pending_xref, nodes.title, nodes.comment} & set(inside):
                continue
            target = literal if isinstance(literal, nodes.literal) else text
            if pieces := self.pieces(text.astext(), isinstance(literal, nodes.literal)):
                target.parent.replace(target, pieces)

    def pieces(self, text: str, literal: bool) -> list[nodes.Node]:
        """The text cut where it names a page; nothing where it names none. A literal is a link as a whole."""
        known = [match for match in PAGE.finditer(text) if match[1] in self.env.found_docs]
        if not known or (literal and known[0][0] != text):
            return []
        pieces, end = [], 0
        for match in known:
            pieces += [nodes.Text(text[end : match.start()]), self.link(match)]
            end = match.end()
        return [piece for piece in [*pieces, nodes.Text(text[end:])] if piece.astext()]

    def link(self, match: re.Match[str]) -> nodes.Node:
        shown = nodes.literal("", match[0])
        return pending_xref(
            "", shown, refdomain="std", reftype="doc", reftarget=f"/{match[1]}", refexplicit=True, refwarn=True
        )


def ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    """The nodes around a node, nearest first."""
    while node.parent is not None:
        yield (node := node.parent)


# llms.txt


def expand(app: Sphinx, page: str, source: list[str]) -> None:
    """Put what is read from the code and from the repository's first folder into a page, and keep the text for llms.txt."""
    source[0] = INCLUDED.sub(lambda match: (ROOT / match[1]).read_text(), source[0])
    for mark, write in (("<!-- commands -->", commands_page), ("<!-- python -->", python_page)):
        if mark in source[0]:
            source[0] = source[0].replace(mark, write())
    PAGES[page] = source[0]


PAGES: dict[str, str] = {}  # by name, as they were read


def write_llms(app: Sphinx, error: Exception | None) -> None:
    """llms.txt and the Markdown of each page, in the order of the index."""
    if error or app.builder.name != "html":
        return
    folder, entries = Path(app.outdir), []
    for page in in_order(app, app.config.root_doc):
        if page in PAGES:  # a page that was not read again has been written before
            (folder / f"{page}.md").write_text(PAGES[page])
        entries.append(f"- [{clean_astext(app.env.titles[page])}]({page}.md): {first_sentence(folder / f'{page}.md')}")
    (folder / "llms.txt").write_text(LLMS + "\n" + "\n".join(entries) + "\n")


def in_order(app: Sphinx, page: str) -> Iterator[str]:
    """The page and those of its tables of contents."""
    yield page
    for child in app.env.toctree_includes.get(page, []):
        yield from in_order(app, child)


def first_sentence(path: Path) -> str:
    """What the page says first, below its title."""
    parts = path.read_text().split("\n\n")
    paragraph = next((part for part in parts if re.match(r"[\w*]|`(?!`)|- ", part)), "")
    return re.split(r"(?<=[.?])\s", " ".join(paragraph.removeprefix("- ").split()))[0]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(LinksToPages)
    app.connect("source-read", expand)
    app.connect("build-finished", write_llms)
    return {"parallel_read_safe": False}
