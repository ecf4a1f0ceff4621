"""Experiments of many runs: grids, the results store, the paper's tables and figures."""
