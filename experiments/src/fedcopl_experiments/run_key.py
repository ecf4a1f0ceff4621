"""The key of a run: a hash of the settings and the source files that can change its result."""

import json
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fedcopl
from fedcopl.config import RunConfig

PACKAGE = Path(fedcopl.__file__).parent
# Parts of the package that cannot change a result; every other part is hashed.
WITHOUT_EFFECT = {
    *("api", "cli", "doctor", "errors", "files", "local_page", "classifier", "report", "review", "watch"),
    *("run/folder", "run/progress_reporter"),
    # A grid does not use Flower.
    *("deployment", "flower_app", "simulation/on_flower"),
}
LENGTH = 16  # hex digits: a collision among a million runs has a probability of 3e-8


@cache
def code_version() -> str:
    """Return the version of the package with a hash of the source files that can change a result."""
    digest = sha256()
    for path in _deciding_files():
        name = path.relative_to(PACKAGE).as_posix()
        digest.update(f"{name}\0{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"{version('fedcopl')}+{digest.hexdigest()[:LENGTH]}"


def run_key(config: RunConfig) -> str:
    """Return the hash of everything that can change the result."""
    return sha256(json.dumps([deciding_settings(config), code_version()], sort_keys=True).encode()).hexdigest()[:LENGTH]


def deciding_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that can change a result.

    Excluded are the run's name; `model.memory`, which changes no bit; and `model.threads`, which may change a last bit,
    so that a grid can continue with another --jobs.
    """
    return config.model_dump(exclude={"name": True, "model": {"memory", "threads"}})


def _deciding_files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*") if path.is_file() and _decides(path.relative_to(PACKAGE)))


def _decides(path: Path) -> bool:
    module = path.with_suffix("")
    is_source = len(path.parts) > 1 or (path.suffix == ".py" and not module.name.startswith("__"))
    parts = {module.parts[0], "/".join(module.parts[:2])}
    return is_source and not parts & WITHOUT_EFFECT and path.suffix != ".pyc"
