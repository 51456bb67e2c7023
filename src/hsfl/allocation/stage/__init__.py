"""One stage of a round with given cuts: training with the model's upload, or the model's distribution.

`stage` has the numbers of a stage, `scaling` gives it units of its own, `stage_answer` what a solver takes and gives. `fixed_shares` divides cycles and power for given
subchannels (`water_filling`); `client_prices` says what a client needs to keep a deadline. `exclusive` assigns whole subchannels
(`local_search`, then a proof by `assignment`, `subset_dp` or `lagrangian`; `subchannel_order` sorts them by price); `shared_bands`
divides them. Not here: both stages as one round (`allocation.exact`), and the choice of cuts (`allocation.cuts`).
"""
