"""Parts of `benchmarks/testbed.py`."""
