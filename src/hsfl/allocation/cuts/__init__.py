"""Which cut for which client, chosen once for all rounds on sampled rounds.

`search` has the methods (descent, genetic, exhaustive) and the rules; they ask a judge for the mean round of candidates. `radio` is
the judge for a radio, with `packed_samples` as its compiled arrays; `bound` and `bound_shared` say how far the cuts can be from the best
cuts. `large_fleets` lets the clients of large fleets answer to prices. Not here: the judge for measured links
(`allocation.measured_links`), one round with given cuts (`allocation.exact`), and the samples of a config (`hsfl.planning`).
"""
