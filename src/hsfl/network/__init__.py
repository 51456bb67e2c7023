"""The network that a round runs on: devices, radio or measured links, seconds of each phase, and the clock.

`devices` and `channel` say who can do what and draw the rounds; `latency` has the paper's equations; `clock` (with `steps` and
`clusters`) says who finishes when in each framework, and who is dropped at tau; `even_allocation` divides everything evenly.
Who gets which cycles, subchannels and power is decided in `hsfl.allocation`; fleets and links of a config are built in
`hsfl.planning`. No torch is imported in this folder.
"""
