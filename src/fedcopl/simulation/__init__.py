"""A federation on one machine, for research and trials."""
