"""Numbers with nouns in singular or plural."""


def counted(count: float, noun: str, plural: str = "") -> str:
    """Return a count with its noun, in the plural unless the count is 1; an irregular plural must be given.

    >>> counted(1, "round"), counted(1198, "test image"), counted(2, "class"), counted(0, "entry", "entries")
    ('1 round', '1,198 test images', '2 classes', '0 entries')
    >>> counted(1, "file is", "files are"), counted(3, "file is", "files are")
    ('1 file is', '3 files are')
    """
    regular = f"{noun}es" if noun.endswith(("s", "sh")) else f"{noun}s"
    return f"{count:,.0f} {noun if count == 1 else plural or regular}"
