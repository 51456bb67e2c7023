"""The life of a run: prepare what the config names (`prepare`, `client_data`), begin or resume (`resume`), train round by round
(`loop`) within the budget (`budget`), and write the folder (`folder`, which holds its lock, too). `records` says what the files
hold, `write_records` makes them, `checkpoint` saves the state. Settings without effect are refused by `unused_settings`. Many
runs at once are in `studies`, the algorithms in `frameworks`, seconds and who takes part in `planning`, figures in `report`.
"""
