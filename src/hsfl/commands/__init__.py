"""The command line: a module for each command, in which the function `NAME_command` is the command NAME.

`console` has what commands share: the options, the consoles, one-line errors, tables, and `print_json`, by which every `--json` is
printed. `cli` joins the commands to `hsfl`. A command reads its options, calls one function of another folder and shows
the answer; nothing is computed or decided here. The same calls from Python are in `hsfl.api`.
"""
