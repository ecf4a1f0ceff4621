"""The results of many runs in one SQLite file, for tables, notebooks and plain SQL."""

from .csv_parquet import run_row
from .database import FILE_NAME, ResultStore
from .stored_run import StoredRun, accuracies, headline, round_rows

__all__ = ["FILE_NAME", "ResultStore", "StoredRun", "accuracies", "headline", "round_rows", "run_row"]
