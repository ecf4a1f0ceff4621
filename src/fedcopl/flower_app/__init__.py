"""The ServerApp and ClientApp that `flwr run` starts.

For deployments that already run Flower; `fedcopl server` and `join` need neither.
"""
