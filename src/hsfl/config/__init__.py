"""One frozen tree of settings for a run, read from TOML or JSON and changed with `section.field=value`.

`sections` lists every field with its default, `options` those of single frameworks and models. `reading` reads presets, files and changes;
`field_names` lists all names (`hsfl.errors` says what is wrong with one); `document` writes docs/settings.md. The presets themselves lie in `hsfl/presets`;
quantities such as 5GHz are read by `hsfl/quantities.py`. Which settings would do nothing in a run is found in `runs/checks/unused_settings.py`.
"""

from hsfl.config.options import OptionsConfig
from hsfl.config.reading import (
    DATA_KINDS,
    config_file,
    flatten,
    is_of_a_run,
    parse_config,
    parse_stored,
    presets,
    read_config,
    read_options,
    read_tree,
    resolved,
    set_name,
    set_names,
    with_changes,
)
from hsfl.config.sections import (
    DEVICES_DATA,
    OWN_DATA,
    OWN_MODEL,
    AllocationConfig,
    AttackConfig,
    DataConfig,
    EngineConfig,
    FleetConfig,
    ModelConfig,
    NetworkConfig,
    RunConfig,
    TrainConfig,
)

__all__ = [
    "DATA_KINDS",
    "DEVICES_DATA",
    "OWN_DATA",
    "OWN_MODEL",
    "AllocationConfig",
    "AttackConfig",
    "DataConfig",
    "EngineConfig",
    "FleetConfig",
    "ModelConfig",
    "NetworkConfig",
    "OptionsConfig",
    "RunConfig",
    "TrainConfig",
    "config_file",
    "flatten",
    "is_of_a_run",
    "parse_config",
    "parse_stored",
    "presets",
    "read_config",
    "read_options",
    "read_tree",
    "resolved",
    "set_name",
    "set_names",
    "with_changes",
]

OFFERED = {  # to other folders, by module
    "options": ("GPTOptions", "OF_MODELS", "ViTOptions"),
    "reading": ("beside", "from_folder", "INPUTS", "KEPT"),
}
