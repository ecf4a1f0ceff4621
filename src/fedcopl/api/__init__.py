"""The library for people who write Python: sites, a federation of them, and what comes out."""

from .federation import Federation, simulate
from .result import Result
from .site import Site

__all__ = ["Federation", "Result", "Site", "simulate"]
