"""From a config to a plan: the world of a run (`world`), the cuts, which are chosen once (`cuts`, `policy_cuts`), who takes part in
a round (`participation`), what a round gives each client (`allocators`, `policy_allocator`), and how long the round takes then
(`round_clock`). `fleet_plan` is `hsfl plan`. Files that need numba are imported only where a policy asks for them; nothing
here needs torch. Equations of links and phases are in `network`, solvers in `allocation`, training in `frameworks`, and the
rounds of a run in `runs`.
"""
