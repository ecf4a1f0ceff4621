"""What makes two runs the same: the settings that can change a result, and the code that decides it."""

import json
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fedcopl
from fedcopl.config import RunConfig

PACKAGE = Path(fedcopl.__file__).parent
# All of the package decides results but for what keeps, shows or names them: a new part counts until it stands here.
DECIDES_NOTHING = {
    *("api", "cli", "doctor", "errors", "files", "local_page", "classifier", "report", "review", "watch"),
    *("run/folder", "run/progress_reporter"),
    # Flower carries the same questions; a grid is played in one process.
    *("deployment", "flower_app", "simulation/on_flower"),
}
LENGTH = 16  # hex digits: two of a million runs share a key once in forty million grids


@cache
def code_version() -> str:
    """The package's version and a hash of the files that decide results: not of the pages, commands and documents."""
    digest = sha256()
    for path in _deciding_files():
        name = path.relative_to(PACKAGE).as_posix()
        digest.update(f"{name}\0{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"{version('fedcopl')}+{digest.hexdigest()[:LENGTH]}"


def run_key(config: RunConfig) -> str:
    """A short name of everything that can change the result."""
    return sha256(json.dumps([deciding_settings(config), code_version()], sort_keys=True).encode()).hexdigest()[:LENGTH]


def deciding_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that can change a result.

    Not among them: the run's name; `model.memory`, which decides what is kept and what is computed again, to the same
    bits; and `model.threads`, which may turn a last bit but asks no other question: a grid goes on whatever --jobs is.
    """
    return config.model_dump(exclude={"name": True, "model": {"memory", "threads"}})


def _deciding_files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*") if path.is_file() and _decides(path.relative_to(PACKAGE)))


def _decides(path: Path) -> bool:
    module = path.with_suffix("")
    own = len(path.parts) > 1 or (path.suffix == ".py" and not module.name.startswith("__"))
    named = {module.parts[0], "/".join(module.parts[:2])}
    return own and not named & DECIDES_NOTHING and path.suffix != ".pyc"
