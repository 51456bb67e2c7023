"""The one error that people see."""


class InputError(ValueError):
    """Wrong input. The message names the thing, shows the value and offers the way out; commands print it alone."""
