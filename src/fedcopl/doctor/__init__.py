"""Checks of machine, settings, model and images before a run."""

from .checks import diagnose, fix, settings_file
from .findings import Finding, FindingLevel

__all__ = ["Finding", "FindingLevel", "diagnose", "fix", "settings_file"]
