"""The run folders of a grid, named by run keys."""

from contextlib import suppress
from pathlib import Path

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError, RunFolderError
from fedcopl.run.folder import EXAMPLES, REPORT, RESULTS, read_finished
from fedcopl.run.record import Outcome

from .run_key import run_key

CHECKPOINT = "checkpoint.safetensors"
FINAL_FILES = (RESULTS, "prompts/server.safetensors", EXAMPLES)  # written at the end of a run, under its lock


def finished_outcome(folder: Path) -> Outcome | None:
    """Return the outcome of a finished run, whether the store has it or not; None if the run is not finished."""
    if not all((folder / name).exists() for name in FINAL_FILES):
        return None
    try:
        outcome = read_finished(folder)
        config = RunConfig.from_mapping(outcome.settings, str(folder))
    except ConfigError:
        return None
    except RunFolderError as error:
        if isinstance(error.__cause__, OSError):  # unreadable: running it again would not help
            raise
        return None
    return outcome if run_key(config) == folder.name else None


def write_missing_report(folder: Path) -> None:
    """Write the report of a finished run if it is missing, as after a grid was killed."""
    from fedcopl.report.run_page import write_report  # imports the templates

    if not (folder / REPORT).exists():
        write_report(folder)


def drop_checkpoint(folder: Path) -> None:
    """Remove the checkpoint of a finished run, which is never resumed."""
    with suppress(OSError):
        (folder / CHECKPOINT).unlink()
