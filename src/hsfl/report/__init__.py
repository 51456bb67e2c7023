"""What runs reached, read from their folders: curves, comparisons, sweeps, tables and figures.

`compared_runs` reads run folders; `comparison_summary` sums them up into a `comparison`, whose tables it holds; `gantt` and
`plots` draw with matplotlib. The page report.html is made in `page`; its scripts, style sheet and template are in `assets`.
Nothing here trains or plans: what a run folder holds and how it is written is in `hsfl.runs`, the paper's own table and figures
are in `hsfl.experiments`, and what a command prints around a table is in `hsfl.commands`.
"""
