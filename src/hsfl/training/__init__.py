"""What the parties compute in a round, for one client or for all: no framework and no network is known here.

`step` is the split step of one batch, `roles` are the client, the main server and the edge server, `link` is what they send through and
`aggregate` the sums that they average. `batches` says what a client trains on; how many steps that is comes from `hsfl.data.passes`.
`losses`, `evaluation` and `norm_statistics` judge a model. Rounds are put together in `hsfl.frameworks`, runs in `hsfl.runs`.
"""
