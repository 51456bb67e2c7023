"""From a config to a plan: the world of a run (`world`), the cuts, which are chosen once (`cuts`, `policy_cuts`), who takes part in
a round (`participation`), what a round gives each client (`allocators`, `policy_allocator`), and how long the round takes then
(`round_clock`). `fleet_plan` is `hsfl plan`. Files that need numba are imported only where a policy asks for them; nothing
here needs torch. Equations of links and phases are in `network`, solvers in `allocation`, training in `frameworks`, and the
rounds of a run in `runs`.
"""

OFFERED = {  # to other folders, by module
    "allocators": ("own_policy", "policy_of"),
    "cpsl_policy": ("choose_clusters", "plan_one_cut", "plans_one_cut", "takes_turns"),
    "cuts": (
        "check_cuts",
        "choose_cuts",
        "choose_one_cut",
        "cut_for_each",
        "fastest_cuts",
        "fastest_one_cut",
        "looks_at_cuts",
    ),
    "fair_defaults": ("without_auto",),
    "fleet_from_file": ("fleet_notes", "with_fleet_file"),
    "fleet_plan": ("device_table", "make_plan", "Plan"),
    "participation": ("choose_clients", "choose_present", "CutTask", "most_weight", "update_weights"),
    "policy_allocator": ("policy_notes",),
    "policy_cuts": ("cut_request",),
    "round_clock": ("Extras", "is_tested", "RoundClock"),
    "straggler": ("explain_straggler",),
    "unit_slips": ("unit_note",),
    "world": (
        "count_batches",
        "make_world",
        "measured_cost",
        "model_cost",
        "OPTIMIZER_STATES",
        "PluginOptions",
        "scenario_of_round",
        "World",
        "world_of",
    ),
}
