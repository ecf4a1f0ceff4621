"""A site that sends itself a signal at certain requests: STRUCK is `SIGSTOP 3 train, 4 train`, signal and requests."""

import os
import signal

from fedcopl.cli import main
from fedcopl.deployment.site.running_site import RunningSite

honest = RunningSite.handle
name, steps = os.environ["STRUCK"].split(" ", 1)


def struck(self, message, terms):
    if f"{message.round + 1} {type(message).__name__.lower()}" in steps.split(", "):
        os.kill(os.getpid(), signal.Signals[name])
    return honest(self, message, terms)


RunningSite.handle = struck
main()
