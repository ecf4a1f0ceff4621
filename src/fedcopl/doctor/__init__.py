"""A look at everything a run needs, before it is needed."""

from .findings import Finding, FindingLevel
from .visit import mend, settings_file, visit

__all__ = ["Finding", "FindingLevel", "mend", "settings_file", "visit"]
