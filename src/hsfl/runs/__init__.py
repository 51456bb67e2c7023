"""The life of a run: prepare what the config names (`prepare`, `client_data`, `from_plan`), choose an engine (`engine_choice`), begin or resume (`resume`), train round by
round (`loop`) within the budget (`budget`), tell of it (`progress`, `cuts_and_allocation`), test or write its model (`export`), and make it
again from its records (`replay`). `method_extras` and `planned_extras` say what a method sends besides, `server_timing` times a server's end
of a round. `prediction_check` sets a plan beside what runs took, `prediction_ranking` several of them. `run_folder` is what a run leaves
behind, `checks` what a config is told before it begins, `studies` many runs for one question. The algorithms are in `frameworks`, seconds
and who takes part in `planning`, figures in `report`.
"""

OFFERED = {  # to other folders, by module
    "checks.unused_settings": (
        "refuse_unused",
        "refuse_unused_by_contenders",
    ),
    "client_data": (
        "divide_samples",
        "expected_samples",
        "expected_task",
        "read_data",
        "sample_facts",
        "Survey",
    ),
    "cuts_and_allocation": (
        "allocation_words",
        "cuts_words",
        "how_cuts_were_chosen",
    ),
    "export": (
        "evaluate_folder",
        "export_folder",
    ),
    "from_plan": (
        "as_planned",
        "check_plan_folder",
        "keep_plan",
        "PLAN_FILE",
        "PlannedCuts",
        "read_plan",
    ),
    "loop": (
        "make_clock",
        "RunStopped",
        "train_run",
    ),
    "planned_extras": ("planned_extras",),
    "prediction_check": ("RoundSpan",),
    "prediction_ranking": (
        "check_plans",
        "PlanCheck",
    ),
    "prepare": (
        "find_device",
        "input_shape",
        "make_images",
        "make_model",
        "prepare",
    ),
    "progress": (
        "Observer",
        "observer",
    ),
    "replay": (
        "replay_run",
        "ReplayReport",
    ),
    "run_folder.checkpoint": (
        "load_tensors",
        "save_checkpoint",
        "save_tensors",
    ),
    "run_folder.environment": ("environment",),
    "run_folder.folder": (
        "check_same_run",
        "holds_something",
        "LOCK",
        "lock_file",
        "path_name",
        "record_line",
        "run_path",
        "RunFolder",
        "TIMING",
    ),
    "run_folder.provenance": ("names_of",),
    "run_folder.records": (
        "AllocationNote",
        "best_round",
        "CheckedRound",
        "ClientsRecord",
        "ContenderRecord",
        "ContendersRecord",
        "Count",
        "Held",
        "Index",
        "Number",
        "PER_CLIENT",
        "Positive",
        "RECORDED",
        "ROUND_S",
        "RoundCrowd",
        "RoundRecord",
        "RunStanding",
        "standing_after",
    ),
    "run_folder.round_phases": (
        "CLIENT_PARTS",
        "modelled_phases_s",
        "parts_of_round",
    ),
    "run_folder.round_tables": (
        "metric_names",
        "phase_table",
        "ROUND_FIELDS",
        "round_row",
        "round_table",
        "write_tables",
    ),
    "run_folder.write_records": (
        "clients_record",
        "coded_note",
        "finite_quality",
        "make_round_record",
        "phase_times",
        "summarise",
        "Summary",
    ),
    "server_timing": ("time_server_parts",),
    "studies.compare_runs": (
        "has_ended",
        "run_contenders",
        "run_or_resume",
        "run_piece",
    ),
    "studies.contender_names": ("name_by_itself",),
    "studies.contenders": (
        "contender",
        "labels_of",
        "read_contender",
        "split_label",
    ),
    "studies.grid": (
        "check_contenders",
        "read_grid",
    ),
    "studies.process_pool": (
        "in_processes",
        "worthwhile_workers",
    ),
    "studies.run_many": (
        "ConsoleShow",
        "ManyRuns",
        "Piece",
        "run_all",
        "Show",
    ),
    "studies.sweep_runs": ("run_sweep",),
}
