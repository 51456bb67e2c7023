"""The optimiser of rounds: cuts once for all rounds; cycles, subchannels and power in every round, with a proven gap.

`solvers.allocate` is what `hsfl allocate` calls. `scenario` is the question and `answer` the reply; `exact` solves a round, `drop_at_tau`
says who sits it out, `policies` are the baselines, `cells` and `given_rates` the rounds of several cells and of measured links.
`stage/` solves one stage of a round with given cuts; `cuts/` chooses the cuts. Not here: the equations of seconds and rates
(`hsfl.network.latency`), and the fleets, scenarios and rounds of a config (`hsfl.planning`). No torch is imported in this folder.
"""
