"""Benchmarks: ratios measured in one run, because these machines are noisy."""
