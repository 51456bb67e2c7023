"""The main server: it plans the rounds, trains the units above the cuts, and leads the edge server and the clients.

`main_server` makes the rounds and agrees on who is kept; `handlers` answers clients that join and train, `remote_evaluation`
those that judge the model; `main_round` is the state of an open round. `roster` knows the clients, `edge_link` talks to the
edge server and swaps sums with it, `cut_planner` chooses cuts, `status`, `client_counts` and `run_record` tell of the rounds and clients, `server_checkpoint` writes
what survives a restart. The edge server itself is `hsfl.deploy.edge_server`, and cuts are chosen in `hsfl.deploy.main.cut_planner`.
"""
