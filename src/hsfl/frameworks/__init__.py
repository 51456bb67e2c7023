"""Published algorithms, a class for each; `hsfl.framework_table` has their rows."""

from importlib import import_module

from hsfl.framework_table import method
from hsfl.frameworks.framework import Framework


def find_framework(name: str) -> type[Framework]:
    """The class of the framework `name`."""
    code = method(name).code
    if not isinstance(code, str):
        return code
    module, _, attribute = code.partition(":")
    found: type[Framework] = getattr(import_module(module), attribute)
    return found
