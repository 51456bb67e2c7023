"""The optimiser of rounds: cuts once for all rounds; cycles, subchannels and power in every round, with a proven gap.

`solvers.allocate` is what `hsfl allocate` calls. `scenario` is the question (`scenario_file`, `random_scenarios`) and `answer` the reply;
`exact`, `paper` and `scip` solve a round, `drop_at_tau` says who sits it out. `policies` are the baselines, by the rows of `policy_table`;
`cells` (with `divide_cycles`) has rounds of several cells, `measured_links` those of links with given rates, and `queued_rounds` those of a
main server that is one queue. `compiled_queue` and `numba_cache` make them fast. `stage/` solves one stage of a round with given cuts;
`cuts/` chooses the cuts. Not here: the equations of seconds and rates (`hsfl.network.latency`), the order in which a queue serves
(`hsfl.network.server_queue`), and the fleets, scenarios and rounds of a config (`hsfl.planning`). No torch is imported in this folder.
"""

OFFERED = {  # to other folders, by module
    "answer": (
        "Allocation",
        "phases_of",
        "shares_of_answer",
        "SolveStatus",
        "with_gap",
        "within_gap",
    ),
    "cells": (
        "CellsAnswer",
        "distribute_cells",
        "solve_cells",
    ),
    "compiled_queue": ("queued_round_compiled",),
    "cuts.bound": (
        "bound_over_cuts",
        "LEAST_S",
        "warm_up_bound",
    ),
    "cuts.large_fleets": (
        "CellsOfRound",
        "Crowd",
        "LargeFleet",
        "Loads",
    ),
    "cuts.radio": (
        "radio_request",
        "RadioRounds",
    ),
    "cuts.search": (
        "best_single_cut",
        "CutChoice",
        "CutRequest",
        "CutSettings",
        "ignore_progress",
        "OnProgress",
        "random_cuts",
        "search_cuts",
        "single_cuts",
    ),
    "exact": (
        "distribute_model",
        "exact",
        "stage_solver",
    ),
    "measured_links": (
        "best_measured_round",
        "keep_within_tau_measured",
        "least_training",
        "MeasuredRounds",
        "optimal_cycles",
    ),
    "numba_cache": (
        "cache_dir",
        "is_cold",
    ),
    "policies": (
        "in_time",
        "Policy",
        "policy",
        "PROOF_LIMIT_S",
        "register_policy",
    ),
    "policy_table": (
        "POLICIES",
        "policy_row",
        "POLICY_RULES",
        "PolicyRow",
    ),
    "queued_rounds": ("QueuedRounds",),
    "random_scenarios": ("random_scenario",),
    "scenario": (
        "rows_between",
        "Scenario",
    ),
    "solvers": (
        "allocate",
        "solver_named",
    ),
    "stage.stage_answer": ("TimeLimit",),
    "stage.subset_dp": ("few_subchannels",),
}
