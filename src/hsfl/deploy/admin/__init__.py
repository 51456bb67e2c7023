"""Who may take part in a round of the main server, and what the operator orders while a run goes on.

`benching` is the state machine that benches offenders and stragglers. `operator_events` has the orders of `hsfl admin` and their
file, events.jsonl in the run folder. `fleet_state` is the state that follows from both, a value; `fleet_control` holds it for the
main server. So far nothing waits, sends or loads torch. `fleet_orders` is what the main server does about that state between two rounds,
and `admission` who may attend: of two devices with one bundle the first.
"""
