"""The folder of a grid's run, called by its key."""

from contextlib import suppress
from pathlib import Path

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError, RunFolderError
from fedcopl.run.folder import EXAMPLES, REPORT, RESULTS, read_finished
from fedcopl.run.record import Outcome

from .run_key import run_key

CHECKPOINT = "checkpoint.safetensors"
WHOLE = (RESULTS, "prompts/server.safetensors", EXAMPLES)  # what a run writes when it ends, while it holds the folder


def whole_outcome(folder: Path) -> Outcome | None:
    """The outcome of a run that came to its end, whether or not anybody wrote that down."""
    if not all((folder / name).exists() for name in WHOLE):
        return None
    try:
        outcome = read_finished(folder)
        played = RunConfig.from_mapping(outcome.settings, str(folder))
    except ConfigError:
        return None
    except RunFolderError as error:
        if isinstance(error.__cause__, OSError):  # it cannot be read at all: playing it again would not mend that
            raise
        return None
    return outcome if run_key(played) == folder.name else None


def write_missing_report(folder: Path) -> None:
    """The page of a run that ended; a grid that was killed right then left none."""
    from fedcopl.report.run_page import write_report  # brings the templates

    if not (folder / REPORT).exists():
        write_report(folder)


def drop_checkpoint(folder: Path) -> None:
    """To save room: a run that is done is not resumed."""
    with suppress(OSError):
        (folder / CHECKPOINT).unlink()
