"""HSFL from Python: what stands behind `hsfl.run`, `hsfl.compare`, `hsfl.sweep`, `hsfl.plan`, `hsfl.plan_check`, `hsfl.cost`, `hsfl.evaluate` and `hsfl.open`.

`arguments` turns what a call is given into a config, data and a model; `run_calls`, `sweep_calls`, `plan_calls`, `prediction_calls`, `model_calls` and
`folder_calls` have the functions, `run_results`, `plan_calls` and `prediction_calls` what they answer, `notebook_figure` what a notebook draws.
They call what the commands call (`hsfl.runs`, `hsfl.planning`, `hsfl.report`) and print nothing unless they are asked to.
`hsfl/__init__.py` says which names are public.
"""

OFFERED = {  # to other folders, by module
    "folder_calls": ("open_folder",),
    "model_calls": ("cost", "cost_with_model"),
    "plan_calls": ("plan",),
    "prediction_calls": ("plan_check",),
    "run_calls": ("compare", "evaluate", "new_folder", "run"),
    "sweep_calls": ("sweep",),
}
