"""The names of all settings, those of plugins' options included, and the error sentence for a name that is none of them."""

from hsfl import plugins
from hsfl.config.sections import RunConfig
from hsfl.errors import field_names, suggest


def config_fields() -> list[str]:
    """The dotted names of all fields, the options of plugins included."""
    options = [name for key, model in plugins.OPTIONS.items() for name in field_names(model, f"options.{key}.")]
    return field_names(RunConfig) + options


def fields_of(section: str) -> str:
    """The dotted names of the fields of a section, joined by commas."""
    return ", ".join(name for name in config_fields() if name.startswith(f"{section}."))


def unknown_field(path: str) -> str:
    """What to say of a field that does not exist."""
    return f"unknown config field {path!r}; {suggest(path, config_fields())}"
