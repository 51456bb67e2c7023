"""The folder that a run leaves behind: the folder with its lock (`folder`), what its files hold (`records`) and how a round becomes a record
(`write_records`), the plain tables (`round_tables`, with the phases of `round_phases`), machine and versions (`environment`), which plugin
files were used (`provenance`), and what `--resume` needs (`checkpoint`). The loop that fills the folder is `runs.loop`, and `report` draws
from it.
"""
