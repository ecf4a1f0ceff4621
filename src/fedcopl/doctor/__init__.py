"""A look at everything a run needs, before it is needed."""

from .findings import Finding, FindingLevel
from .visit import mend, visit

__all__ = ["Finding", "FindingLevel", "mend", "visit"]
