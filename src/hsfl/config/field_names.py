"""The names of all settings, those of plugins' options included. `hsfl.errors.explain` says what is wrong with a setting."""

from hsfl import plugins
from hsfl.config.sections import RunConfig
from hsfl.errors import field_names


def config_fields() -> list[str]:
    """The dotted names of all fields, the options of plugins included."""
    options = [name for key, model in plugins.OPTIONS.items() for name in field_names(model, f"options.{key}.")]
    return field_names(RunConfig) + options


def fields_of(section: str) -> str:
    """The dotted names of the fields of a section, joined by commas."""
    return ", ".join(name for name in config_fields() if name.startswith(f"{section}."))
