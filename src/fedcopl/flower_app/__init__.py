"""The two apps that `flwr run` starts.

For people who already run Flower; `fedcopl server` and `join` need neither.
"""
