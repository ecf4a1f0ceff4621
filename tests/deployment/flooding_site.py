"""A site that takes part in the labelling, and then answers every training with fifty million bytes, at once."""

from dataclasses import replace

import numpy as np

from fedcopl.cli import main
from fedcopl.deployment.site.running_site import RunningSite
from fedcopl.messages import Train

honest = RunningSite.answer
FLOOD = {"visual": np.random.default_rng(0).random(12_500_000, np.float32)}
sent = []


def flooding(self, ask, terms):
    if not isinstance(ask, Train):
        return honest(self, ask, terms)
    if not sent:
        sent.append(replace(honest(self, ask, terms), shared=FLOOD))
    return sent[0]


RunningSite.answer = flooding
main()
