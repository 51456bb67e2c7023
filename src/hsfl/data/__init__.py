"""Images and labels as NumPy arrays: reading, fetching, dividing among clients. Only `augment` imports torch."""
