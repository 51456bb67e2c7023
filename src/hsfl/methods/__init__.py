"""The table of frameworks, and the door by which a user's framework gets a row in it. Imports no torch."""

from hsfl.methods.registering import FREE_STYLES, read_style, register_framework
from hsfl.methods.table import (
    COMPARED,
    METHODS,
    PROPOSED,
    Method,
    Style,
    Timing,
    copy_per_client_names,
    method,
    register,
)

__all__ = [
    "COMPARED",
    "FREE_STYLES",
    "METHODS",
    "PROPOSED",
    "Method",
    "Style",
    "Timing",
    "copy_per_client_names",
    "method",
    "read_style",
    "register",
    "register_framework",
]
