"""What runs reached, read from their folders: curves, comparisons, sweeps, tables and figures.

`compared_runs` reads run folders; `comparison_summary` sums them up into a `comparison`, whose tables it holds; `gantt` and
`plots` draw with matplotlib. The page report.html is made in `page`; its scripts, style sheet and template are in `assets`.
Nothing here trains or plans: what a run folder holds and how it is written is in `hsfl.runs`, the paper's own table and figures
are in `hsfl.experiments`, and what a command prints around a table is in `hsfl.commands`.
"""

OFFERED = {  # to other folders, by module
    "compared_runs": ("display_name",),
    "comparison": ("Comparison",),
    "comparison_summary": ("check_target", "gain_sentences", "read_comparison"),
    "curves": ("Estimate", "estimate", "half_width"),
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
    "gantt": ("gantt_of_rounds", "waiting_spans"),
    "page.page": ("write_page",),
    "page.page_words": ("describe_plan", "plan_sentence"),
    "plots": ("write_figures", "Y_LABELS"),
    "sweep_figure": ("write_sweep_figures",),
    "sweep_results": ("check_metrics", "default_metrics", "read_sweep"),
    "tables": (
        "markdown_rows",
        "scaled_estimate",
        "spread_note",
        "SummaryTable",
        "ValueCell",
        "write_summary_tables",
    ),
    "watch": ("HOST", "make_server"),
}
