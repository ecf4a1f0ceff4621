"""`fedcopl server`: the centre of a real federation."""
