"""HSFL from Python: `hsfl.run`, `hsfl.compare` and `hsfl.plan`."""
