"""Models as ordered lists of units, and what each cut between two units costs.

`units` says what a SplitModel is, `state` holds the weights of consecutive units in flat vectors, `cost_table` measures every cut.
`recipes` lists the models by name, `zoo` builds them, and the architectures stand in files of their own. `split/` cuts any module by its graph.
Training is in `hsfl.training`; which cut a client gets is decided in `hsfl.planning`.
"""
