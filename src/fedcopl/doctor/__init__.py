"""Checks of machine, settings, model and images before a run, and the folder of a new study."""
