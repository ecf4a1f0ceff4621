"""Checks of machine, settings, model and images before a run."""
