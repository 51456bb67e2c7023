"""The same training on real machines: one main server, one edge server, and clients with their own data.

Here: each process from its settings to its end (`processes`), the client (`client`, `client_round`), the edge server
(`edge_server`), and what operators read (`logs`, `metrics`, `status`, `run_record`, `diagnosis`). Chapters: `trust` says
who is let in, `wire` moves the messages, `main` is the main server. The training itself is not here: the roles, steps
and sums are those of `hsfl.training`, as in a simulation. Needs the extra `deploy`; docs/deploy.md is the operator's guide.
"""

OFFERED = {  # to other folders, by module
    "demo": ("CLIENTS", "Demo"),
    "logs": ("Log", "open_log"),
    "processes": ("certs_folder", "run_client", "serve_edge", "serve_main"),
    "settings": ("ClientSettings", "EdgeSettings", "MainSettings", "read_settings"),
    "status": ("ask_status",),
    "trust.authority": ("Authority", "Issued"),
}
