"""From a config to a plan: the world of a run (`world`, `fleet_from_file`), what `auto` becomes (`fair_defaults`), what codecs change in the
cost table (`coded_cost`), and the cuts, which are chosen once (`cuts`, `policy_cuts`, `large_fleet_cuts`). `rounds` divides each round and
times it, `plans` is `hsfl plan`. Files that need numba are imported only where a policy asks for them; nothing here needs torch.
Equations of links and phases are in `network`, solvers in `allocation`, training in `frameworks`, and the rounds of a run in `runs`.
"""

OFFERED = {  # to other folders, by module
    "coded_cost": (
        "coded_cost",
        "Coding",
        "cost_of_rows",
        "rows_within_points",
        "timed_coding",
        "work_of_rows",
    ),
    "cuts": (
        "check_codecs",
        "check_cuts",
        "choose_cuts",
        "choose_one_cut",
        "cut_for_each",
        "fastest_cuts",
        "fastest_one_cut",
        "given_rows",
        "looks_at_cuts",
        "planned_framework",
    ),
    "fair_defaults": (
        "alike_words",
        "one_cut_of",
        "without_auto",
    ),
    "fleet_from_file": (
        "fleet_notes",
        "with_fleet_file",
    ),
    "plans.fleet_plan": (
        "device_table",
        "make_plan",
        "Plan",
    ),
    "plans.single_cut": ("single_cut_sentence",),
    "plans.unit_slips": ("unit_note",),
    "policy_cuts": ("cut_request",),
    "rounds.allocators": (
        "own_policy",
        "policy_of",
    ),
    "rounds.cpsl_policy": (
        "choose_clusters",
        "plan_one_cut",
        "plans_one_cut",
        "takes_turns",
    ),
    "rounds.measured_queue": ("divides_server",),
    "rounds.participation": (
        "choose_clients",
        "choose_present",
        "CutTask",
        "most_weight",
        "update_weights",
    ),
    "rounds.policy_allocator": ("policy_notes",),
    "rounds.round_clock": (
        "Extras",
        "is_tested",
        "RoundClock",
    ),
    "rounds.straggler": ("explain_straggler",),
    "world": (
        "count_batches",
        "make_world",
        "measured_cost",
        "model_cost",
        "OPTIMIZER_STATES",
        "PluginOptions",
        "round_end_of",
        "scenario_of_round",
        "server_is_queue",
        "tests_per_round",
        "World",
        "world_of",
    ),
}
