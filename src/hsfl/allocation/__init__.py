"""The optimiser: cuts once, cycles, subchannels and power every round, with a proven gap. Knows no torch."""
