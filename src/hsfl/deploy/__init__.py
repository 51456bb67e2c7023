"""The same training on real machines: one main server, one edge server, and clients with their own data.

Here: each process from its settings to its end (`settings`, `processes`, with the limits of `device_limits`), the client (`client`, `client_setup`, `client_round`), the
edge server (`edge_server`), and what operators read (`logs`, `metrics`, `diagnosis`). `compute_queue` says whose step is computed next.
Both servers build the same with `model_kit`, keep units in a `unit_store`, and clip with `clipped_sides`. `demo` starts all of it on one machine.
After a lost link `client.run_and_reconnect` joins again, and `client_round` repeats its stream within a round.
Chapters: `trust` says who is let in, `wire` moves the messages, `main` is the main server with its plan, records and status, `admin` says
who is benched and what the operator orders. The training itself is not here: the roles, steps and sums are those of `hsfl.training`, as in a
simulation. Needs the extra `deploy`; docs/deploy.md is the operator's guide.
"""

OFFERED = {  # to other folders, by module
    "admin.fleet_state": (
        "check_event",
        "read_facts",
    ),
    "admin.operator_events": (
        "append_event",
        "EVENTS_FILE",
        "OperatorEvent",
        "time_now",
    ),
    "demo": (
        "CLIENTS",
        "Demo",
    ),
    "logs": (
        "Log",
        "open_log",
    ),
    "main.status": ("ask_status",),
    "processes": (
        "certs_folder",
        "run_client",
        "serve_edge",
        "serve_main",
    ),
    "settings": (
        "ClientSettings",
        "EdgeSettings",
        "MainSettings",
        "read_settings",
    ),
    "trust.authority": (
        "Authority",
        "Issued",
    ),
    "trust.bundle": ("check_bundle",),
    "wire.link_probe": ("probe_link",),
}
