"""Models as ordered lists of units, and what each cut between two units costs.

`units` says what a SplitModel is, `state` holds the weights of consecutive units in flat vectors, `cost_table` measures every cut.
`recipes` lists the models by name, `zoo` builds them, the architectures stand in files of their own over shared `layers`, and
`huggingface` takes those of transformers. `weights_file` reads first weights, `model_checks` looks at a user's model before a run.
`split/` cuts any module by its graph. Training is in `hsfl.training`; which cut a client gets is decided in `hsfl.planning`.
"""

OFFERED = {  # to other folders, by module
    "cost_table": ("BITS_PER_BYTE", "check_sample_shape", "CostTable", "measure_cost", "measure_module"),
    "model_checks": ("check_example", "check_fits", "check_weights", "example"),
    "recipes": ("find_recipe", "memory_format_of"),
    "split.codegen": ("GraphUnit",),
    "split.graph_split": ("split",),
    "split.module_split": ("ModuleSplit",),
    "split.torch_export": ("sizes_by_place",),
    "state": (
        "bind_state",
        "bound_copy",
        "dense",
        "is_dense",
        "joined_view",
        "Layout",
        "load_state",
        "Packed",
        "read_state",
        "tensors_from_bytes",
        "tensors_to_bytes",
        "TensorsByClient",
        "UnitState",
        "usual_strides",
    ),
    "units": ("SplitModel",),
    "weights_file": ("load_init_weights",),
    "zoo": ("build", "build_from", "register_model"),
}
