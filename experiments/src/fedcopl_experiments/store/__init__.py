"""The results of many runs in one SQLite file, for tables, notebooks and plain SQL."""

from .database import FILE_NAME, ResultStore
from .export import run_row
from .stored_run import StoredRun, flat, headline, round_rows

__all__ = ["FILE_NAME", "ResultStore", "StoredRun", "flat", "headline", "round_rows", "run_row"]
