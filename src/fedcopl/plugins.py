"""Methods and labelers from files outside the package."""

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .labelers import LABELERS
from .registry import PLUGINS_VARIABLE, Registry


def load_plugin(path: str | Path) -> None:
    """Run a Python file and register the classes in its dictionaries METHODS and LABELERS.

    Child processes load the file, too. It is code: load only files that you trust.

    Args:
        path: The file. `METHODS = {"mine": MyMethod}` registers a subclass of `Method`,
            `LABELERS = {"mine": MyLabeler}` one of `Labeler`.

    Raises:
        ConfigError: The file cannot be loaded, or registers nothing.
    """
    from .methods import METHODS  # imports torch, which a process without plug-ins may not need

    registries: Mapping[str, Registry[Any]] = {"METHODS": METHODS, "LABELERS": LABELERS}
    file = Path(path).absolute()
    name = f"fedcopl_plugin_{sha256(str(file).encode()).hexdigest()[:12]}"
    located = importlib.util.spec_from_file_location(name, file)
    if not file.is_file():
        raise ConfigError(f"{path}: there is no such file; --plugin names a Python file")
    if located is None or located.loader is None:
        raise ConfigError(f"{path}: is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(located)
    sys.modules[name] = module
    try:
        located.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path}: cannot be loaded: {type(error).__name__}: {error}") from error
    registered = {kind: dict(getattr(module, kind, {})) for kind in registries}
    if not any(registered.values()):
        raise ConfigError(f"{path}: has neither METHODS nor LABELERS, for example METHODS = {{'mine': MyMethod}}")
    for kind, entries in registered.items():
        for entry, implementation in entries.items():
            registries[kind].add(entry, implementation)
    os.environ[PLUGINS_VARIABLE] = os.pathsep.join(dict.fromkeys([*_files_in_environment(), str(file)]))


def load_plugins(paths: Iterable[str | Path] = ()) -> None:
    """Load the plug-in files in the environment variable FEDCOPL_PLUGINS, then the given ones."""
    for path in [*_files_in_environment(), *paths]:
        load_plugin(path)


def _files_in_environment() -> list[str]:
    return [path for path in os.environ.get(PLUGINS_VARIABLE, "").split(os.pathsep) if path]
