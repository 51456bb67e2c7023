"""What runs say, read from their folders: curves, comparisons, figures."""
