"""What a round of a run gives each client, and how long the round takes: who takes part (`participation`), who gets which cycles,
band and power (`allocators`, `policy_allocator`, and by kind of network `radio_round`, `measured_round`, `measured_queue`; CPSL has a policy
of its own, `cpsl_policy`), the clock of a run (`round_clock`), and what held a client up (`straggler`). The equations of phases and timelines
are in `network`, the solvers in `allocation`, and cuts, which are chosen once for all rounds, one folder up.
"""
