"""Class names: cleaned once, as they stand in a sentence."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..errors import DataError

CLASSES_FILE = "classes.txt"


def clean(name: str) -> str:
    """`tennis_court` -> `tennis court`; the same letters are the same characters on every system."""
    return " ".join(unicodedata.normalize("NFC", name).replace("_", " ").split())


def clean_all(names: Sequence[str], origin: object) -> tuple[str, ...]:
    """All names cleaned; two that become one, or a name of nothing, is an error."""
    cleaned = [clean(name) for name in names]
    twice = [name for name, count in Counter(cleaned).items() if count > 1]
    if twice:
        same = ", ".join(repr(name) for name, result in zip(names, cleaned, strict=True) if result == twice[0])
        raise DataError(f"{origin}: the classes {same} are all called {twice[0]!r}; give each a name of its own")
    if "" in cleaned:
        raise DataError(f"{origin}: a class has an empty name ({names[cleaned.index('')]!r})")
    return tuple(cleaned)


def read_classes(file: Path) -> list[str]:
    """One name a line; empty lines do not count."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{file}: there is no such list of classes") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read as a list of class names: {error}") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise DataError(f"{file}: names no class; write one name a line")
    return names


def find_classes(classes_file: str, root: Path) -> tuple[list[str], Path] | None:
    """The list of classes the settings name, else the one beside the images, if there is one."""
    file = Path(classes_file).expanduser() if classes_file else root / CLASSES_FILE
    return (read_classes(file), file) if classes_file or file.is_file() else None
