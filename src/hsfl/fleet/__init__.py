"""Devices as engineers describe them: quantities with units, and files that list devices by name."""
