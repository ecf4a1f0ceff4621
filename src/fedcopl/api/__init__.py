"""The Python library: sites, a federation of them, what comes out."""

from .federation import Federation, Site, simulate
from .result import Result

__all__ = ["Federation", "Result", "Site", "simulate"]
