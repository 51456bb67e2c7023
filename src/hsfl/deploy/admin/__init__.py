"""Who may take part, and what the operator orders while a run goes on. Nothing here waits, sends or loads torch.

`benching` is the state machine that benches offenders and stragglers. `operator_events` has the orders of `hsfl admin` and their
file, `events.jsonl` in the run folder. `fleet_state` is the state that follows from both, a value; `fleet_control` holds it for the
main server, which acts on it in `hsfl.deploy.main.fleet_orders`.
"""
