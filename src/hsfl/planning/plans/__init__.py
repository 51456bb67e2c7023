"""`hsfl plan`: the plan of a fleet (`fleet_plan`) and the rounds that the plan rests on (`plan_rounds`), the plan of a large fleet without
a row for each client (`plan_large`), one cut for all beside planned cuts (`single_cut`), and a note where a setting is probably in another unit (`unit_slips`). How cuts are chosen
is one folder up, how a round is divided in `planning.rounds`, and the command's tables are in `commands`.
"""
