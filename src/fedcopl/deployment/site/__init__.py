"""`fedcopl join`: one site of a real federation, with its own images."""
