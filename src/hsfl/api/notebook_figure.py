"""Figures that a notebook shows without pyplot."""

from io import BytesIO
from typing import TYPE_CHECKING

from hsfl.report.figure_style import STYLE, matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def shown_in_notebooks(figure: "Figure") -> "Figure":
    """The figure, which a notebook then shows as a PNG. Without this only figures of pyplot are shown."""

    def png() -> bytes:
        file = BytesIO()
        with matplotlib().rc_context(STYLE):
            figure.savefig(file, format="png", dpi=110, facecolor="white")
        return file.getvalue()

    setattr(figure, "_repr_png_", png)  # noqa: B010, because the type of a figure has no such name
    return figure
