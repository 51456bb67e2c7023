"""The life of a run: prepare, train round by round, write the folder, go on after a stop."""
