"""A site that sends itself a signal at certain requests: SIGNAL_AT is `SIGSTOP 3 train, 4 train`."""

import os
import signal

from fedcopl.cli import main
from fedcopl.deployment.site.running_site import RunningSite

handle = RunningSite.handle
name, steps = os.environ["SIGNAL_AT"].split(" ", 1)


def handle_with_signal(self, message, terms):
    if f"{message.round + 1} {type(message).__name__.lower()}" in steps.split(", "):
        os.kill(os.getpid(), signal.Signals[name])
    return handle(self, message, terms)


RunningSite.handle = handle_with_signal
main()
