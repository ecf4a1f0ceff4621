"""Readers of data sets, cache of pixels, partition over clients."""
