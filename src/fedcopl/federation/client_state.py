"""The state that a client keeps between two requests. It is never sent."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..algorithm.holdout import HoldoutState
from ..algorithm.select import Selection
from ..messages import Shared
from ..privacy.private_replies import Secrets
from .learner import Prompts
from .prior_estimation import NO_PRIOR, PriorState

Labels = NDArray[np.int32]
"""One class for each image."""


@dataclass(frozen=True)
class ClientState:
    """A client's arrays and memory between two requests. Never sent."""

    own: Prompts = field(default_factory=dict)  # arrays that are not shared; shared ones too, after a rollback
    begun: Prompts = field(default_factory=dict)  # its whole model at the end of the run this one continues, if any
    log_probs: NDArray[np.float64] | None = None  # of the last estimate, until the selection is made from it
    counts: NDArray[np.int64] | None = None  # u_k of the last estimate
    quota: NDArray[np.int64] | None = None  # images of each class that the last selection was allowed
    selection: Selection | None = None
    confidence: NDArray[np.float64] | None = None  # log-probability of each selected image's label
    labels: Labels | None = None  # the most probable class of every image at the last selection
    first: Selection | None = None  # the holdout with its labels at the first refresh
    holdout: HoldoutState = field(default_factory=HoldoutState)
    prior: PriorState = NO_PRIOR
    secrets: Secrets = field(default_factory=Secrets)  # keys and noise, for privacy


def whole_model(start: Prompts, shared: Shared, state: ClientState) -> Prompts:
    """Combine the first arrays, the server's average and the client's own arrays into its model."""
    return {**start, **state.begun, **shared, **state.own}
