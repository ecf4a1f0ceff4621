"""A look at everything a run needs, before it is needed: what was found, and what to do about it."""

from .findings import Finding, FindingLevel
from .visit import visit

__all__ = ["Finding", "FindingLevel", "visit"]
