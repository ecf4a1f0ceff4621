"""A site that takes part in the labelling and sends an invalid reply to every training request."""

from dataclasses import replace

import numpy as np

from fedcopl.cli import main
from fedcopl.deployment.site import pipeline
from fedcopl.deployment.site.running_site import RunningSite
from fedcopl.messages import Train, digest

FAULTS = ["not finite", "wrong shape", "huge", "of another round", "an exception", "a flood"]  # by round
FLOOD = 3_000_000  # numbers, twelve million bytes
handle = RunningSite.handle
reply_records = pipeline.reply_records
other_digest = {}  # of the request that the next reply claims to answer


def handle_with_faults(self, message, terms):
    reply = handle(self, message, terms)
    if not isinstance(message, Train):
        return reply
    visual = reply.shared["visual"]
    match FAULTS[message.round]:
        case "not finite":
            return replace(reply, shared={"visual": np.full_like(visual, np.nan)})
        case "wrong shape":
            return replace(reply, shared={"visual": visual[:, :1]})
        case "huge":
            return replace(reply, shared={"visual": np.zeros(400_000, np.float32)})
        case "of another round":
            other_digest["request"] = digest(replace(message, round=0))
            return reply
        case "a flood":
            return replace(reply, shared={"visual": np.random.default_rng(0).random(FLOOD, np.float32)})
    raise RuntimeError("patient-17.png cannot be read")


def records_with_faults(reply, request, folder):
    return reply_records(reply, other_digest.pop("request", request), folder)


RunningSite.handle = handle_with_faults
pipeline.reply_records = records_with_faults
main()
