"""A plan beside runs as files: the figure, the numbers as JSON, and check.html, one page that works without a network or a script."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsfl.errors import InputError
from hsfl.files import write_atomic, write_json
from hsfl.report.figure_style import FORMATS, STYLE, matplotlib, save_figure
from hsfl.report.prediction_figure import prediction_figure
from hsfl.report.prediction_tables import (
    clients_table,
    ranking_sentences,
    ranking_table,
    run_sentences,
    run_title,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "check"  # of the files in a folder
ALT = "predicted against measured seconds of the clients' phases and of the rounds, with the diagonal"


def write_check(check: Any, out: Path) -> list[Path]:
    """Write a figure, if `out` ends as one, else check.html, check.png and check.json into the folder `out`; returns the files. check: a
    `PlanCheck`."""
    kind = out.suffix[1:]
    if kind in FORMATS and not out.is_dir():
        return save_figure(prediction_figure(check), out.with_suffix(""), [kind])
    if out.exists() and not out.is_dir():
        raise InputError(f"--out={out} is a file; choose a folder, or a figure that ends in .{', .'.join(FORMATS)}")
    figure, page, numbers = prediction_figure(check), out / f"{NAME}.html", out / f"{NAME}.json"
    write_atomic(page, lambda scratch: scratch.write_text(_page(check, figure), "utf-8"))
    write_json(numbers, asdict(check))
    return [page, *save_figure(figure, out / NAME, ["png"]), numbers]


def _page(check: Any, figure: "Figure") -> str:
    drawn = BytesIO()
    with matplotlib().rc_context(STYLE):
        figure.savefig(drawn, format="svg", metadata={"Date": None}, facecolor="white")
    image = f"data:image/svg+xml;base64,{b64encode(drawn.getvalue()).decode()}"
    style = resources.files("hsfl.report").joinpath("assets", "page.css").read_text("utf-8")
    parts = [f'<figure><img src="{image}" alt="{ALT}" style="width: 100%"></figure>']
    if check.ranking is not None:
        parts.append(_section("The order", *ranking_table(check.ranking), ranking_sentences(check.ranking)))
    parts += [_section(run_title(run), *clients_table(run), run_sentences(run)) for run in check.runs]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>A plan, measured</title>
<style>
{style}
</style>
</head>
<body>
<header class="page"><p class="kicker">HSFL plan-check</p><h1>A plan, measured</h1></header>
<main class="page">
{"".join(parts)}
</main>
</body>
</html>
"""


def _section(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], sentences: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    paragraphs = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    table = f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    return f"<section><h2>{escape(title)}</h2>{paragraphs}{table}</section>\n"
