"""What a site may be called."""

from ...errors import ConfigError

LONGEST_NAME = 60


def check_site_name(name: str, where: str) -> None:
    """Refuse a name that cannot be shown in one line; `where` says whose mistake it is."""
    if not name.isprintable() or name != name.strip() or not 0 < len(name) <= LONGEST_NAME:
        raise ConfigError(f"{where}: {name!r} must be 1 to {LONGEST_NAME} printable characters")
