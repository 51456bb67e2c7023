"""The network that a round runs on: devices, radio or measured links, seconds of each phase, and the clock.

`devices` and `channel` say who can do what and draw the rounds, `history` plays recorded ones back, `given_numbers` checks what people
give; `latency` has the paper's equations. `clock` (with `in_step_times` and `clusters`) says who finishes when in each framework, and who
is dropped at tau; `server_queue` is a main server that serves one batch at a time, in which order, `round_end` what a round takes
after its clients, `norm_estimation_times` what BatchNorm's estimation takes. `even_allocation` divides everything evenly.
Who gets which cycles, subchannels and power is decided in `hsfl.allocation`; fleets and links of a config are built in
`hsfl.planning`. No torch is imported in this folder.
"""

OFFERED = {  # to other folders, by module
    "channel": (
        "antenna_positions",
        "draw_round",
        "draw_rounds",
        "Links",
        "Measured",
        "nearest_cell",
        "Ofdma",
        "PathLoss",
        "random_positions",
        "RATE_NAMES",
        "RoundDraw",
        "SPEED_STD",
    ),
    "clock": (
        "after_upload",
        "LEVEL",
        "PHASES",
        "raw_upload",
        "Timeline",
        "timeline",
        "Why",
        "with_end",
    ),
    "clusters": (
        "gibbs_clusters",
        "random_clusters",
    ),
    "devices": (
        "draw_fleet",
        "Fleet",
        "fleet_of_file",
        "MANY_CLIENTS",
        "max_cuts",
        "Servers",
        "with_heterogeneity",
    ),
    "even_allocation": (
        "even_phases",
        "even_resources",
        "framework_cuts",
        "psl_batch_sizes",
    ),
    "history": (
        "read_history",
        "round_of_history",
    ),
    "in_step_times": (
        "BATCH_PHASES",
        "queue_order",
        "run_steps",
    ),
    "latency": (
        "client_round_s",
        "client_work",
        "duration_s",
        "LN2",
        "phases",
        "Phases",
        "rate_bps",
        "Rates",
        "round_s",
        "server_work",
        "shared_rate_bps",
        "training_end_s",
        "transfer_s",
        "UnitWork",
    ),
    "norm_estimation_times": ("estimation_s",),
    "round_end": (
        "END_PARTS",
        "RoundEnd",
        "SWAP_MESSAGES",
    ),
    "server_queue": (
        "least_queued_s",
        "queued_beside",
        "queued_round",
        "queued_work",
        "QueuedRound",
        "QueuedWork",
        "Serve",
        "serve_batches",
        "service_arguments",
    ),
}
