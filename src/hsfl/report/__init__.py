"""What runs reached, read from their folders: curves, comparisons, sweeps, tables and figures.

`compared_runs` reads run folders; `comparison_summary` sums them up into a `comparison`, whose tables it holds (`decision_gains`);
`sweep_results` reads a sweep. `curves` and `tables` have means and intervals; `gantt`, `plots`, `plan_figure`, `sweep_figure` and
`prediction_figure` draw with matplotlib in the `figure_style`. A plan beside runs is told by `prediction_tables` and `prediction_page`. The page
report.html is made in `page`, its scripts, style sheet and template are in `assets`, and `watch` serves it while runs are under way.
Nothing here trains or plans: what a run folder holds and how it is written is in `hsfl.runs`, the paper's own table and figures
are in `hsfl.experiments`, and what a command prints around a table is in `hsfl.commands`.

This folder has the name of the function `hsfl.report`, so it can be called: `hsfl.report("runs/mine")` writes the page of a folder.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

OFFERED = {  # to other folders, by module
    "compared_runs": (
        "CheckedPlan",
        "ComparisonRecord",
        "display_name",
        "read_run",
        "Run",
        "run_folders",
        "SWEEP_FILE",
    ),
    "comparison": ("Comparison",),
    "comparison_summary": ("check_target", "gain_sentences", "read_comparison", "summarise_runs"),
    "curves": ("estimate", "Estimate", "half_width"),
    "figure_style": (
        "add_side_legend",
        "escape_dollars",
        "FAINT",
        "INK",
        "legend_texts",
        "matplotlib",
        "save_figure",
        "STYLE",
    ),
    "gantt": ("gantt_figure", "gantt_of_rounds", "waiting_spans"),
    "page.page": ("PAGE_NAME", "write_page", "write_report"),
    "page.page_sources": ("refuse_empty",),
    "page.page_words": ("describe_plan", "plan_sentence"),
    "plan_figure": ("plan_figure",),
    "plots": ("learning_figure", "write_figures", "Y_LABELS"),
    "prediction_figure": ("prediction_figure",),
    "prediction_page": ("write_check",),
    "prediction_tables": ("clients_table", "ranking_sentences", "ranking_table", "run_sentences", "run_title"),
    "sweep_figure": ("sweep_figure", "write_sweep_figures"),
    "sweep_results": ("check_metrics", "default_metrics", "read_sweep", "Sweep"),
    "tables": ("markdown_rows", "scaled_estimate", "spread_note", "SummaryTable", "ValueCell", "write_summary_tables"),
    "watch": ("HOST", "make_server"),
}


class _CalledFolder(ModuleType):
    """This package as something that is called."""

    def __call__(self, *arguments: Any, **named: Any) -> "Path":
        """As `page.page.write_report`, whose errors speak of arguments here."""
        from hsfl.errors import speaks_of_arguments  # here, because a folder's `__init__` loads nothing
        from hsfl.report.page.page import write_report

        return speaks_of_arguments(write_report)(*arguments, **named)


sys.modules[__name__].__class__ = _CalledFolder
