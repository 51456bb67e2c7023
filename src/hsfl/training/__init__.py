"""What the parties compute in a round, for one client or for all: no framework and no network is known here.

`step` is the split step of one batch, `roles` are the client, the main server and the edge server, `link` is what they send through and
`aggregate` the sums that they average. `batches` says what a client trains on; how many steps that is comes from `hsfl.data.passes`.
`losses`, `evaluation` and `norm_statistics` judge a model. Rounds are put together in `hsfl.frameworks`, runs in `hsfl.runs`.
"""

OFFERED = {  # to other folders, by module
    "aggregate": ("check_growth", "Diverged", "EXACT_INTEGERS", "largest_allowed", "PartialSum", "sum_memory"),
    "batches": ("ClientData", "Feed", "Images", "no_observer", "PlannedBatch", "resized"),
    "evaluation": (
        "evaluate_model",
        "evaluation_batch_size",
        "mean_quality",
        "merge_tallies",
        "num_batches",
        "Quality",
        "quality_of_tallies",
        "Tally",
        "tally",
        "tally_output",
    ),
    "link": ("Link", "LinkBytes", "Losses"),
    "losses": ("CLASSIFY", "Goal"),
    "norm_statistics": ("Estimator", "Moments", "NormBatches", "NormLayers", "NormShard", "num_seen"),
    "roles": ("Client", "count_both", "EdgeServer", "FinishedSide", "MainServer", "Server", "Session"),
    "speed": ("free_memory_bits", "keep_freed_memory", "machine_memory_bits", "Speed", "training_speed"),
    "step": ("apply_gradient_on_client", "learning_rate", "Part", "StepKey", "whole_step"),
}
