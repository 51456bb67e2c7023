"""Many runs for one question: frameworks compared under one budget (`compare_runs`, `contenders`, `contender_names`), settings
swept over values (`sweep_runs`, `grid`), one training timed by several clocks (`shared_training`), and the processes that make runs side by
side (`run_many`, `process_pool`). A single run is `runs.loop`; tables and figures of the folders are in `report`.
"""
