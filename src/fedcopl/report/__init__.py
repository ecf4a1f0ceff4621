"""A run's outcome for people: one HTML page.

It needs no network, no script and nothing beside it.
"""
