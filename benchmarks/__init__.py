"""Benchmarks: ratios of two ways measured alternately, because the machines are noisy."""
