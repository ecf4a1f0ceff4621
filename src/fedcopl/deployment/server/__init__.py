"""`fedcopl server`: the server of a real federation."""
