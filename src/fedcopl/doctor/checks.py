"""All checks in order, and safe fixes."""

from collections.abc import Iterator
from pathlib import Path

from ..config import RunConfig, load
from ..data.cache import Progress
from ..errors import ConfigError
from .federation_folder import check_endings, is_federation_folder
from .findings import Finding, ok, problem
from .machine import check_device, check_disk, check_extras, check_memory, check_packages, check_python, check_server
from .sites import fix_folders
from .study import check_data, check_model, check_time

SETTINGS = "settings.toml"


def diagnose(
    where: Path | None = None,
    *,
    server: str | None = None,
    certificate: Path | None = None,
    progress: Progress = lambda done, total: None,
) -> Iterator[Finding]:
    """Check this machine, the settings, the folder of a site or server, and a server."""
    yield from check_python()
    yield from check_packages()
    yield from check_extras()
    yield from check_memory()
    yield from check_disk(Path.cwd())
    if where is not None and is_federation_folder(where):
        yield from check_endings(where)
    file = settings_file(where)
    if file is None:
        yield from check_device(RunConfig().model)
    else:
        yield from _study(file, progress)
    if server is not None:
        yield from check_server(server, certificate)


def fix(where: Path | None = None) -> Iterator[str]:
    """Apply safe fixes and yield what was done: folders with misspelt names are renamed."""
    file = settings_file(where)
    if file is not None:
        yield from fix_folders(load(file).data)


def settings_file(where: Path | None) -> Path | None:
    """Return the settings file: the given one, that of the given folder, or ./settings.toml if it exists.

    The folder of a site or server has none.
    """
    if where is None or is_federation_folder(where):
        return Path(SETTINGS) if Path(SETTINGS).is_file() else None
    file = where / SETTINGS if where.is_dir() else where
    if not file.is_file():
        raise ConfigError(f"{where}: there is no {'settings.toml in it' if where.is_dir() else 'such file or folder'}")
    return file


def _study(file: Path, progress: Progress) -> Iterator[Finding]:
    try:
        config = load(file)
    except ConfigError as error:
        yield problem("settings", str(error), "fix the setting named above; docs/settings.md lists all settings")
        return
    yield ok("settings", str(file))
    yield from check_device(config.model)
    clip = yield from check_model(config)
    dataset = yield from check_data(config, file, progress)
    if clip is not None and dataset is not None:
        yield from check_time(config, clip, dataset)
