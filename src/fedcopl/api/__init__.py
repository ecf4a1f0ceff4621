"""The library for people who write Python: sites, a federation of them, and what comes out."""

from .federation import Federation, Site, simulate
from .result import Result

__all__ = ["Federation", "Result", "Site", "simulate"]
