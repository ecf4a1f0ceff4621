"""`fedcopl` and `python -m fedcopl`: import and run the command line."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line.

    During the imports, which take half a second, Ctrl-C ends the process without a traceback.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # background jobs ignore SIGINT
        signal.signal(signal.SIGINT, _stop)
    from .cli import main as run_command

    signal.signal(signal.SIGINT, before)
    run_command()


def _stop(number: int, frame: FrameType | None) -> None:
    print("fedcopl: stopped", file=sys.stderr, flush=True)
    os._exit(130)


if __name__ == "__main__":
    main()
