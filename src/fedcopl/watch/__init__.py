"""`fedcopl watch`: a live page of a run, read from its folder."""
