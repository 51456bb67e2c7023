"""The life of a run: prepare what the config names (`prepare`, `client_data`), begin or resume (`resume`), train round by round
(`loop`) within the budget (`budget`), and write the folder (`folder`, which holds its lock, too). `records` says what the files
hold, `write_records` makes them, `checkpoint` saves the state. Settings without effect are refused by `unused_settings`. Many
runs at once are in `studies`, the algorithms in `frameworks`, seconds and who takes part in `planning`, figures in `report`.
"""

OFFERED = {  # to other folders, by module
    "checkpoint": ("load_tensors", "save_checkpoint", "save_tensors"),
    "client_data": ("divide_samples", "expected_samples", "expected_task", "read_data", "sample_facts", "Survey"),
    "cuts_and_allocation": ("allocation_words", "cuts_words", "how_cuts_were_chosen"),
    "environment": ("environment",),
    "export": ("evaluate_folder", "export_folder"),
    "folder": ("check_same_run", "holds_something", "LOCK", "lock_file", "path_name", "run_path", "RunFolder"),
    "from_plan": ("as_planned", "check_plan_folder", "keep_plan", "PLAN_FILE", "PlannedCuts", "read_plan"),
    "loop": ("make_clock", "train_run"),
    "prepare": ("input_shape", "make_images", "make_model", "prepare"),
    "progress": ("Observer", "observer"),
    "provenance": ("names_of",),
    "records": (
        "AllocationNote",
        "best_round",
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
        "RoundCrowd",
        "RoundRecord",
        "RunStanding",
        "standing_after",
    ),
    "round_tables": ("metric_names", "phase_table", "ROUND_FIELDS", "round_row", "round_table", "write_tables"),
    "studies.compare_runs": ("has_ended", "run_contenders", "run_or_resume", "run_piece"),
    "studies.contender_names": ("name_by_itself",),
    "studies.contenders": ("contender", "labels_of", "read_contender", "split_label"),
    "studies.grid": ("check_contenders", "read_grid"),
    "studies.process_pool": ("in_processes", "worthwhile_workers"),
    "studies.run_many": ("ConsoleShow", "Piece", "run_all", "Show"),
    "studies.sweep_runs": ("run_sweep",),
    "unused_settings": ("refuse_unused", "refuse_unused_by_contenders"),
    "write_records": ("clients_record", "DIGITS", "make_round_record", "phase_times", "summarise", "Summary"),
}
