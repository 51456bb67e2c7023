"""The paper's table and figures, and studies of our own: `hsfl reproduce NAME` calls `reproduce_NAME`. None has a training loop of its own.

`table1/` is Table 1; `latency/` Figs. 4 and 5; `fig1` and `fig3` the other figures; `gains` and `when*` ask when own cuts are worth it,
`norms` what averaging costs BatchNorm, `codec_rounds` what codecs save of a round, `codec_points` what they cost in accuracy, `robust` what
attackers do to averages; `leaderboard` times all frameworks from trainings that are there, `learning_rates` chooses learning rates.
`study_request` is what all are asked, `common` has folders, tables and trends, `statistics` intervals
and verdicts. A single run, a comparison or a sweep of the user's is in `runs/`; their figures are in `report/`.
"""

OFFERED = {  # to other folders, by module
    "codec_points": ("reproduce_codec_points",),
    "codec_rounds": ("reproduce_codecs",),
    "common": (
        "Outcome",
        "Say",
        "SCALES",
    ),
    "fig1": ("reproduce_fig1",),
    "fig3": ("reproduce_fig3",),
    "gains": ("reproduce_gains",),
    "latency.fig4": ("reproduce_fig4",),
    "latency.fig5": ("reproduce_fig5",),
    "leaderboard": ("reproduce_leaderboard",),
    "learning_rates": ("reproduce_rates",),
    "norms": (
        "DATA",
        "reproduce_norms",
    ),
    "robust": ("reproduce_robust",),
    "study_request": ("StudyRequest",),
    "table1.columns": (
        "columns_named",
        "TAU_DATA",
    ),
    "table1.table1": ("reproduce_table1",),
    "when": ("reproduce_when",),
}
