"""The Python API: sites, a federation of them, and its result."""

from .federation import Federation, Site, simulate
from .result import Result

__all__ = ["Federation", "Result", "Site", "simulate"]
