"""Draws the pictures of docs/architecture.md and of the README: python docs/figures/architecture.py [--out FOLDER]

folders.svg shows the folders of src/hsfl in the layers that docs/architecture.md lists, and the arrows of today's import graph.
deployment.svg shows the processes of a deployment and what travels between them, from the tables below; overview.svg shows the same
to somebody who sees it for the first time. All are plain SVG with the same bytes on every machine. tests/test_architecture.py fails where a committed picture is not the one that is drawn here.
"""

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from house import Module, import_graph, read_modules  # noqa: E402

INK, FAINT, PLAIN, NO_TORCH, COMMON = "#1b1f24", "#57606a", "#f3f4f6", "#dcf0df", "#f5b183"
HELD = "#8cc6ec"  # a unit that a process holds
Arrows = dict[str, set[str]]


class Drawing:
    """An SVG of a few kinds of shapes on a white ground."""

    def __init__(self, width: int, height: int) -> None:
        self.size, self.shapes = (width, height), list[str]()

    def box(self, x: float, y: float, width: float, height: float, fill: str, radius: int = 6) -> None:
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" fill="{fill}" stroke="{INK}"/>'
        )

    def text(self, x: float, y: float, words: str, size: int = 13, bold: bool = False, anchor: str = "middle") -> None:
        weight, color = ("bold", INK) if bold else ("normal", INK if size > 11 else FAINT)
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{color}">{escape(words)}</text>'
        )

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """A straight arrow; its head is 8 long."""
        length = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
        along_x, along_y = (to_x - x) / length, (to_y - y) / length
        base_x, base_y = to_x - 8 * along_x, to_y - 8 * along_y
        corners = (
            (to_x, to_y),
            (base_x - 4 * along_y, base_y + 4 * along_x),
            (base_x + 4 * along_y, base_y - 4 * along_x),
        )
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
        self.shapes.append(
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{base_x:.1f}" y2="{base_y:.1f}" stroke="{FAINT}" stroke-width="1.4"/>'
        )
        self.shapes.append(f'<polygon points="{points}" fill="{FAINT}"/>')

    def svg(self) -> str:
        width, height = self.size
        top = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="Helvetica, Arial, DejaVu Sans, sans-serif">'
        )
        ground = f'<rect x="0" y="0" width="{width}" height="{height}" rx="0" fill="white" stroke="white"/>'
        return "\n".join([top, ground, *self.shapes, "</svg>", ""])


# The folders


WIDTH, HEIGHT, STEP = 206, 44, 76  # of a box; from layer to layer
MIDDLE = {  # of each box, from the left; a folder that is not named stands at the right
    "deploy": 160, "api": 500, "experiments": 720, "report": 610,
    "planning": 290, "training": 590, "allocation": 230, "network": 230, "models": 290, "config": 290, "data": 590,
}  # fmt: skip
ALONE, ELSEWHERE = 430, 830  # the middle of a folder that is alone in its layer, and of one that is not named above
FIRST_FOLDER, LAST_FOLDER = "models", "commands"  # single files below the one share a box, and those above the other


def drawn_layers(text: str) -> list[list[str]]:
    """The layers of docs/architecture.md, lowest first: `a, b <- c` says that c may import a and b."""
    (line,) = re.findall(r"^    (errors <- .*(?:\n      .*)*)$", text, re.M)
    return [[name.strip() for name in layer.split(",")] for layer in line.split("<-")]


@dataclass(frozen=True)
class Box:
    """A folder, or several single files. lines: what stands below the title."""

    title: str
    lines: tuple[str, ...]
    has_torch: bool


def folder_boxes(
    modules: Iterable[Module], layers: list[list[str]]
) -> tuple[list[list[str]], dict[str, Box], dict[str, str]]:
    """The boxes of each layer, lowest first; the boxes by name; and the box of each folder or single file."""
    rank = {name: place for place, layer in enumerate(layers) for name in layer}
    files: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        if not module.is_package:
            files[module.name.split(".")[1]].append(module)
    box_of = {name: name for name in files}
    for name, held in files.items():
        if len(held) == 1 and len(held[0].path.parts) == 1:  # a single file
            if rank[name] < rank[FIRST_FOLDER]:
                box_of[name] = "single files"
            elif rank[name] > rank[LAST_FOLDER]:
                box_of[name] = "the command"
    boxes, rows = {}, list[list[str]]()
    for layer in layers:
        row = list(dict.fromkeys(box_of[name] for name in layer if name in box_of and box_of[name] not in boxes))
        for title in row:
            names = [name for name in rank if box_of.get(name) == title]
            boxes[title] = _box(title, names, [module for name in names for module in files[name]])
        rows += [row] if row else []
    return rows, boxes, box_of


def _box(title: str, names: list[str], held: list[Module]) -> Box:
    has_torch = any(_imports_torch(module.tree) for module in held)
    if names != [title]:
        half = (len(names) + 1) // 2 if len(names) > 4 else len(names)
        return Box(title, tuple(", ".join(part) for part in (names[:half], names[half:]) if part), has_torch)
    chapters = Counter(module.path.parts[1] for module in held if len(module.path.parts) > 2)
    lines = (", ".join(f"{name}/ {count}" for name, count in chapters.items()),) if chapters else ()
    return Box(f"{title}: {len(held)} files" if len(held) > 1 else title, lines, has_torch)


def _imports_torch(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        named += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        if any(name.split(".")[0] == "torch" for name in named):
            return True
    return False


def folder_arrows(graph: Mapping[str, set[str]], box_of: Mapping[str, str]) -> Arrows:
    """Which box imports which, without arrows that follow from others (a transitive reduction)."""
    arrows: Arrows = {box: set() for box in box_of.values()}
    for module, imported in graph.items():
        for other in imported:
            start, end = (box_of.get(name.split(".")[1]) for name in (module, other))
            if start is not None and end is not None and start != end:
                arrows[start].add(end)

    def reached(start: str) -> set[str]:
        return arrows[start].union(*(reached(other) for other in arrows[start]))

    return {
        start: {end for end in ends if not any(end in reached(other) for other in ends)}
        for start, ends in arrows.items()
    }


def draw_folders(checkout: Path, text: str) -> str:
    """The folders of a checkout. text: docs/architecture.md, which has the layers."""
    modules = read_modules(checkout)
    rows, boxes, box_of = folder_boxes(modules, drawn_layers(text))
    arrows = folder_arrows(import_graph(modules), box_of)
    drawing = Drawing(860, 40 + STEP * len(rows) + 20)
    middle, top, half = {}, {}, {}
    for place, row in enumerate(reversed(rows)):
        for title in row:
            wide = boxes[title].title == title and bool(boxes[title].lines) and len(boxes[title].lines[0]) > 30
            middle[title] = MIDDLE.get(title, ALONE if len(row) == 1 else ELSEWHERE)
            top[title], half[title] = 20 + STEP * place, (1.75 if wide else 1) * WIDTH / 2
    for start, ends in arrows.items():
        for end in sorted(ends):
            x, to_x = (
                _port(middle, half, start, arrows[start], end),
                _port(middle, half, end, {name for name in arrows if end in arrows[name]}, start),
            )
            drawing.arrow(x, top[start] + HEIGHT, to_x, top[end])
    for title, box in boxes.items():
        fill = PLAIN if box.has_torch else NO_TORCH
        drawing.box(middle[title] - half[title], top[title], 2 * half[title], HEIGHT + 12 * (len(box.lines) > 1), fill)
        drawing.text(middle[title], top[title] + (18 if box.lines else 27), box.title, 14, bold=True)
        for place, words in enumerate(box.lines):
            drawing.text(middle[title], top[title] + 35 + 14 * place, words, 12)
    drawing.box(20, 20, 16, 16, NO_TORCH, 2)
    drawing.text(44, 33, "no file here imports torch", 12, anchor="start")
    drawing.arrow(28, 46, 28, 66)
    drawing.text(44, 60, "imports; arrows that follow from others are left out", 12, anchor="start")
    return drawing.svg()


def _port(middle: Mapping[str, float], half: Mapping[str, float], box: str, others: set[str], other: str) -> float:
    """Where on its side of the box the arrow to or from another box stands, so that arrows from the left stand left."""
    order = sorted(others, key=lambda name: (middle[name], name))
    return middle[box] + half[box] * (2 * (order.index(other) + 1) / (len(order) + 1) - 1)


# A deployment


NUM_UNITS = 6
CUTS = {"ward-1": 2, "ward-2": 4, "phone-7": 5}
MESSAGES = (  # from, to, the message that carries it, what travels. Messages with a client are drawn for every client
    ("main", "client", "Round", "its cut {cut}"),
    ("client", "main", "Batch", "smashed data, labels"),
    ("main", "client", "Gradient", "gradient, loss"),
    ("edge", "client", "Fetch", "the head, units 0 to {last}"),
    ("client", "edge", "Upload", "the trained head"),
    ("main", "edge", "Open", "who takes part, with which cut"),
    ("edge", "main", "Have", "whose heads are complete"),
    ("main", "edge", "Swap", "the kept list, and the main server's sums of the common units {low} to {high}"),
    ("edge", "main", "Swap", "the edge server's sums of the common units"),
)
X = {"main": 20, "client": 400, "edge": 780}  # left sides
PANE = 180  # the width of a process


def draw_deployment() -> str:
    """Main server at the left, clients with different cuts in the middle, edge server at the right."""
    low, high = min(CUTS.values()), max(CUTS.values())
    client_rows = [row for row in MESSAGES if "client" in row[:2]]
    server_rows = [row for row in MESSAGES if "client" not in row[:2]]
    each, first = 100, 96  # the height of a client with its gap, and where the first begins
    bottom = first + each * len(CUTS)
    height = bottom + 34 * len(server_rows) + 20
    drawing = Drawing(X["edge"] + PANE + 20, height + 20)
    drawing.text(X["main"] + PANE / 2, 20, "hsfl status, hsfl admin, Prometheus", 12, bold=True)
    drawing.arrow(X["main"] + PANE / 2 - 50, 28, X["main"] + PANE / 2 - 50, first - 16)
    drawing.arrow(X["main"] + PANE / 2 - 20, first - 16, X["main"] + PANE / 2 - 20, 28)
    drawing.text(X["main"] + PANE / 2 - 12, 56, "status, orders, metrics", 11, anchor="start")
    drawing.text(X["edge"] + PANE / 2, 20, "Prometheus", 12, bold=True)
    drawing.arrow(X["edge"] + PANE / 2, first - 16, X["edge"] + PANE / 2, 28)
    drawing.text(X["edge"] + PANE / 2 - 8, 56, "metrics", 11, anchor="end")
    for name, title, start, stop in (("main", "main server", low, NUM_UNITS), ("edge", "edge server", 0, high)):
        drawing.box(X[name], first - 16, PANE, height - first + 16, PLAIN)
        drawing.text(X[name] + PANE / 2, first + 10, title, 14, bold=True)
        drawing.text(X[name] + PANE / 2, first + 30, f"holds units {start} to {stop - 1}", 12)
        _draw_units(drawing, X[name] + 24, first + 42, range(start, stop), range(low, high))
    duties = (
        "trains a copy of the",
        "tail for each client,",
        "one batch at a time,",
        "plans cuts, drops at tau,",
        "benches, takes orders,",
        "keeps the run folder",
    )
    for place, words in enumerate(duties):
        drawing.text(X["main"] + PANE / 2, first + 96 + 20 * place, words, 12)
    for place, words in enumerate(("hands out heads,", "sums those that come back")):
        drawing.text(X["edge"] + PANE / 2, first + 96 + 20 * place, words, 12)
    for name in ("main", "edge"):
        drawing.text(X[name] + PANE / 2, height - 56, "adds both sums of the", 12)
        drawing.text(X[name] + PANE / 2, height - 36, "common units, then divides", 12)
    for place, (client, cut) in enumerate(CUTS.items()):
        y = first - 16 + each * place
        drawing.box(X["client"], y, PANE, each - 18, PLAIN)
        drawing.text(X["client"] + PANE / 2, y + 20, f"client {client}: cut {cut}", 14, bold=True)
        _draw_units(drawing, X["client"] + 24, y + 32, range(cut), range(0))
        drawing.text(X["client"] + PANE / 2, y + 72, "its inputs stay here", 11)
        offsets = {"main": 22.0, "edge": 32.0}
        for start, end, message, what in client_rows:
            server = start if end == "client" else end
            words = what.format(cut=cut, last=cut - 1)
            _draw_message(drawing, start, end, y + offsets[server], message, words)
            offsets[server] += 24
    for place, (start, end, message, what) in enumerate(server_rows):
        _draw_message(drawing, start, end, bottom + 24 + 34 * place, message, what.format(low=low, high=high - 1))
    drawing.box(X["client"] - 160, height - 2, 12, 12, COMMON, 2)
    drawing.text(
        X["client"] - 140,
        height + 9,
        "a common unit: both servers hold it, since it lies behind some cuts and before others",
        12,
        anchor="start",
    )
    return drawing.svg()


def _draw_units(drawing: Drawing, x: float, y: float, held: range, common: range) -> None:
    for unit in range(NUM_UNITS):
        fill = "white" if unit not in held else COMMON if unit in common else HELD
        drawing.box(x + 22 * unit, y, 20, 20, fill, 2)
        drawing.text(x + 22 * unit + 10, y + 15, str(unit), 12)


def _draw_message(drawing: Drawing, start: str, end: str, y: float, message: str, words: str) -> None:
    """A level arrow between two processes, with its words above it."""
    _draw_message_between(drawing, X, start, end, y, f"{message}: {words}")


def _draw_message_between(
    drawing: Drawing, left_sides: Mapping[str, float], start: str, end: str, y: float, words: str
) -> None:
    left, right = sorted((start, end), key=lambda name: left_sides[name])
    sides = (left_sides[left] + PANE + 4, left_sides[right] - 4)
    x, to_x = sides if start == left else sides[::-1]
    drawing.arrow(x, y, to_x, y)
    drawing.text((x + to_x) / 2, y - 5, words, 12)


# The whole in one picture


OVERVIEW_CUTS = {"phone": 2, "camera": 4, "workstation": 5}
OVERVIEW_X = {"edge": 20, "client": 344, "main": 668}


def draw_overview() -> str:
    """Edge server at the left, clients with different cuts in the middle, and in the main server the tail of each client beside it."""
    low, high = min(OVERVIEW_CUTS.values()), max(OVERVIEW_CUTS.values())
    first, pitch, row = 40, 92, 76  # where the first client begins, from client to client, the height of a client
    bottom = first + pitch * (len(OVERVIEW_CUTS) - 1) + row
    drawing = Drawing(OVERVIEW_X["main"] + PANE + 20, bottom + 112)
    for name, title in (("edge", "edge server"), ("client", "clients"), ("main", "main server")):
        drawing.text(OVERVIEW_X[name] + PANE / 2, first - 14, title, 14, bold=True)
    for name in ("edge", "main"):
        drawing.box(OVERVIEW_X[name], first, PANE, bottom - first + 44, PLAIN)
    middle = OVERVIEW_X["edge"] + PANE / 2
    for place, words in enumerate(("averages the heads", "that come back and", "hands them out again")):
        drawing.text(middle, first + 70 + 20 * place, words, 12)
    _draw_units(drawing, OVERVIEW_X["edge"] + 24, first + 130, range(high), range(low, high))
    for place, (client, cut) in enumerate(OVERVIEW_CUTS.items()):
        y = first + pitch * place
        drawing.box(OVERVIEW_X["client"], y, PANE, row, "white")
        drawing.text(OVERVIEW_X["client"] + PANE / 2, y + 22, f"{client}: cut {cut}", 14, bold=True)
        _draw_units(drawing, OVERVIEW_X["client"] + 24, y + 32, range(cut), range(low, high))
        drawing.text(OVERVIEW_X["client"] + PANE / 2, y + 68, "inputs stay here", 11)
        drawing.text(OVERVIEW_X["main"] + PANE / 2, y + 22, f"a tail for the {client}", 12)
        _draw_units(drawing, OVERVIEW_X["main"] + 24, y + 32, range(cut, NUM_UNITS), range(low, high))
        for start, end, offset, words in (
            ("client", "main", 32, "smashed data, labels"),
            ("main", "client", 58, "gradient"),
            ("edge", "client", 32, "averaged head"),
            ("client", "edge", 58, "trained head"),
        ):
            _draw_message_between(drawing, OVERVIEW_X, start, end, y + offset, words)
    swap = f"sums of units {low} to {high - 1}: both servers swap them, then divide"
    _draw_message_between(drawing, OVERVIEW_X, "edge", "main", bottom + 24, swap)
    drawing.arrow(OVERVIEW_X["main"] - 4, bottom + 34, OVERVIEW_X["edge"] + PANE + 4, bottom + 34)
    legend = (
        (HELD, "a unit that the process holds (white: held elsewhere)"),
        (COMMON, "a common unit: before some cuts and behind others, so that both servers hold it"),
    )
    for place, (fill, words) in enumerate(legend):
        drawing.box(OVERVIEW_X["edge"], bottom + 60 + 22 * place, 14, 14, fill, 2)
        drawing.text(OVERVIEW_X["edge"] + 24, bottom + 72 + 22 * place, words, 12, anchor="start")
    return drawing.svg()


def draw_all() -> dict[str, str]:
    """The text of each picture by the name of its file."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    return {
        "folders.svg": draw_folders(ROOT, text),
        "deployment.svg": draw_deployment(),
        "overview.svg": draw_overview(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="the folder of the pictures")
    folder = parser.parse_args().out
    for name, picture in draw_all().items():
        (folder / name).write_text(picture)


if __name__ == "__main__":
    main()
