"""The two apps that `flwr run` starts, for people who already run Flower; `fedcopl server` and `join` need neither."""
