"""The folder of a grid's run, called by its key."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError, RunFolderError

from .run_key import run_key

CHECKPOINT = "checkpoint.safetensors"
WHOLE = ("results.json", "prompts/server.safetensors", "report.html")  # all that a run writes when it ends


def whole_results(folder: Path) -> Mapping[str, Any] | None:
    """The results of a run that came to its end, whether or not anybody wrote that down."""
    if not all((folder / name).exists() for name in WHOLE):
        return None
    try:
        results: Mapping[str, Any] = json.loads((folder / WHOLE[0]).read_text(encoding="utf-8"))
        played = RunConfig.from_mapping(results["settings"], str(folder))
    except OSError as error:
        raise RunFolderError(f"{folder / WHOLE[0]}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, ConfigError):
        return None
    return results if run_key(played) == folder.name else None


def drop_checkpoint(folder: Path) -> None:
    """To save room: a run that is done is not resumed."""
    with suppress(OSError):
        (folder / CHECKPOINT).unlink()
