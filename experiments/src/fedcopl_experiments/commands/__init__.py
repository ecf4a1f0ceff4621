"""The commands that this package adds to `fedcopl`: `reproduce` and `results`."""
