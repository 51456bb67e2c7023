"""The main server: it plans the rounds, trains the units above the cuts, and leads the edge server and the clients.

`main_server` makes the rounds and agrees on who is kept; `handlers` answers clients that join and train; `main_round` is the state of an
open round. `remote_evaluation` has clients judge the model, `overlapping_evaluation` tests it beside the next round, `coded_judgement` says how good it is with codecs. `roster` knows the clients,
`edge_link` talks to the edge server and swaps sums with it, `cut_planner` chooses cuts by the speeds of `learned_speeds`. Against clients that do harm:
`earned_weights`, `clip_factors`, `loss_jump`. `status`, `client_counts` and `run_record` tell of the rounds and clients, `server_checkpoint`
writes what survives a restart. Not here: the edge server (`hsfl.deploy.edge_server`), and who is benched (`hsfl.deploy.admin`).
"""
