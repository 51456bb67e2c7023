"""The paper's table and figures, one file each. None has a training loop of its own."""
