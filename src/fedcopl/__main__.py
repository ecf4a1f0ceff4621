"""`fedcopl` and `python -m fedcopl`: load the command line, which takes half a second, and run it."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line.

    During the imports Ctrl-C ends the process at once, without a traceback, and no library can catch it.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a job in the background ignores it
        signal.signal(signal.SIGINT, _stop)
    from .cli import main as run_command

    signal.signal(signal.SIGINT, before)
    run_command()


def _stop(number: int, frame: FrameType | None) -> None:
    print("fedcopl: stopped", file=sys.stderr, flush=True)
    os._exit(130)


if __name__ == "__main__":
    main()
