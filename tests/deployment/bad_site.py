"""A site that takes part in the labelling and sends an invalid reply to every training request."""

from dataclasses import replace

import numpy as np

from fedcopl.cli import main
from fedcopl.deployment.site import pipeline
from fedcopl.deployment.site.running_site import RunningSite
from fedcopl.messages import Train, digest

NAMES = ["not finite", "wrong shape", "huge", "of another round", "an exception", "a flood"]
FLOOD = 3_000_000  # numbers, twelve million bytes
honest = RunningSite.handle
send = pipeline.reply_records
old = {}


def spoiled(self, message, terms):
    """The right answer, made worse."""
    reply = honest(self, message, terms)
    if not isinstance(message, Train):
        return reply
    visual = reply.shared["visual"]
    match NAMES[message.round]:
        case "not finite":
            return replace(reply, shared={"visual": np.full_like(visual, np.nan)})
        case "wrong shape":
            return replace(reply, shared={"visual": visual[:, :1]})
        case "huge":
            return replace(reply, shared={"visual": np.zeros(400_000, np.float32)})
        case "of another round":
            old["question"] = digest(replace(message, round=0))
            return reply
        case "a flood":
            return replace(reply, shared={"visual": np.random.default_rng(0).random(FLOOD, np.float32)})
    raise RuntimeError("patient-17.png makes it break")


def records(reply, question, folder):
    return send(reply, old.pop("question", question), folder)


RunningSite.handle = spoiled
pipeline.reply_records = records
main()
