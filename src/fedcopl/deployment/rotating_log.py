"""A log that a child writes for as long as it lives, without filling the disk."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

LARGEST, KEPT = 5_000_000, 3  # bytes of a file, older files beside it
PATIENCE = 2.0  # seconds


class RotatingLog:
    """Takes lines until its source ends. Full, the file becomes `name.1`, that one `name.2`, and the oldest goes."""

    def __init__(self, path: Path, largest: int = LARGEST, kept: int = KEPT):
        self.path, self._largest, self._kept = path, largest, kept
        self._thread = threading.Thread()

    def follow(self, source: IO[bytes]) -> None:
        """Write down what comes, in a thread of its own."""
        self._thread = threading.Thread(target=self._follow, args=(source,), daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Until the source has ended and all of it is written; not for ever, somebody else may hold it open."""
        if self._thread.is_alive():
            self._thread.join(PATIENCE)

    def _follow(self, source: IO[bytes]) -> None:
        with source:
            for line in source:
                with suppress(OSError):  # a full disk must not stop who speaks
                    self.write(line)

    def write(self, line: bytes) -> None:
        if self.path.exists() and self.path.stat().st_size + len(line) > self._largest:
            self._turn_over()
        with self.path.open("ab") as file:
            file.write(line)

    def _turn_over(self) -> None:
        for number in range(self._kept - 1, 0, -1):
            if self._older(number).exists():
                self._older(number).replace(self._older(number + 1))
        self.path.replace(self._older(1))

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
