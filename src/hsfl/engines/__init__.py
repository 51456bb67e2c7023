"""Where the clients of a round are trained: in this process, by worker processes, or on a Ray cluster. The numbers are the same.

An engine is started before the data are read, so that workers load torch meanwhile; `attach` gives it the framework, whose
rounds it then spreads. Only frameworks that keep a copy of the server side for each client can be spread: their clients do
not wait for each other within a round. `start` chooses the `engine`: this process, `process_engine`, or `ray_engine` with `ray_cluster` and
`ray_leftovers`. `worker_engine` deals clients to workers, `worker` trains them, `machine` compares versions and counts cores.
What a round computes is in `hsfl.frameworks`; real machines that talk over a network are in `hsfl.deploy`.
"""

OFFERED = {  # to other folders, by module
    "engine": ("CodedCut", "Engine", "Exam", "Inline"),
    "machine": ("num_cores", "sources_sha256"),
    "start": ("start_engine", "why_not_spread"),
}
