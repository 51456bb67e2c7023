"""What the parties compute in a round, for one client or for all: no framework and no network is known here.

`step` is the split step of one batch, `roles` are the client, the main server and the edge server, `link` is what they send through and
`aggregate` the sums that they average. `clipping` shortens updates, `order_statistics` has averages other than sums, `attack` has clients
that do harm. `batches` says what a client trains on, `optimizer` how weights move; how many steps that is comes from `hsfl.data.passes`.
`codecs/` makes messages smaller. `losses` and `evaluation` judge a model, `norm_statistics` estimates BatchNorm's statistics again, `speed` measures how
fast a machine trains. Rounds are put together in `hsfl.frameworks`, runs in `hsfl.runs`.
"""

OFFERED = {  # to other folders, by module
    "aggregate": (
        "check_growth",
        "Diverged",
        "EXACT_INTEGERS",
        "largest_allowed",
        "PartialSum",
        "sum_memory",
    ),
    "attack": (
        "attackers",
        "head_attack_of",
        "HeadAttack",
        "LabelFlip",
    ),
    "batches": (
        "ClientData",
        "Feed",
        "Images",
        "no_observer",
        "PlannedBatch",
        "resized",
    ),
    "clipping": (
        "Clip",
        "clip_of",
        "parameter_stretches",
    ),
    "codecs.codec": (
        "Codec",
        "Draws",
        "Payload",
        "PayloadError",
    ),
    "codecs.coding_speed": (
        "CODING_S",
        "coding_seconds",
    ),
    "codecs.head_codec": (
        "HeadCodec",
        "REMEMBERED",
    ),
    "codecs.link_codecs": (
        "LinkCodecs",
        "make_codec",
        "make_link_codecs",
    ),
    "evaluation": (
        "evaluate_model",
        "evaluation_batch_size",
        "mean_quality",
        "merge_tallies",
        "num_batches",
        "Quality",
        "quality_of_tallies",
        "tally",
        "Tally",
        "tally_output",
        "through_codec",
    ),
    "link": (
        "draws_of",
        "Link",
        "LinkBytes",
        "Losses",
    ),
    "losses": (
        "CLASSIFY",
        "Goal",
    ),
    "norm_statistics": (
        "Estimator",
        "Moments",
        "NormBatches",
        "NormLayers",
        "NormShard",
        "num_seen",
    ),
    "order_statistics": (
        "MEAN",
        "write_average",
    ),
    "roles": (
        "Client",
        "count_both",
        "EdgeServer",
        "FinishedSide",
        "MainServer",
        "Server",
        "Session",
    ),
    "speed": (
        "free_memory_bits",
        "keep_freed_memory",
        "machine_memory_bits",
        "Speed",
        "training_speed",
    ),
    "step": (
        "apply_gradient_on_client",
        "learning_rate",
        "Part",
        "StepKey",
        "whole_step",
    ),
}
