"""Checks of machine, settings, model and images before a run."""

from .checks import diagnose, fix, settings_file
from .findings import Finding

__all__ = ["Finding", "diagnose", "fix", "settings_file"]
