"""HSFL from Python: what stands behind `hsfl.run`, `hsfl.compare` and `hsfl.plan`.

`arguments` turns what a call is given into a config, data and a model; `run_calls` and `plan_calls` have the three functions.
They call what the commands call (`hsfl.runs`, `hsfl.planning`, `hsfl.report`) and print nothing unless they are asked to.
`hsfl/__init__.py` says which names are public.
"""

OFFERED = {  # to other folders, by module
    "plan_calls": ("plan",),
    "run_calls": ("compare", "new_folder", "run"),
}
