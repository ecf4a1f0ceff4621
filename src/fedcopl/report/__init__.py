"""A run's outcome for people: one HTML page that needs no network, no script and nothing beside it."""
