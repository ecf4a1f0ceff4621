"""The state that a client keeps between two requests, and the same as named arrays for files. It is never sent."""

import json
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ..algorithm.holdout import Evidence, Harm, HoldoutState, HoldoutVerdict
from ..algorithm.select import Selection
from ..messages import Shared
from ..priors.posterior import PosteriorModel
from ..priors.statistics import ClientScores
from ..privacy.mask_session import Session
from ..privacy.private_replies import NoisyQueries, Secrets
from .learner import Prompts
from .prior_estimation import NO_PRIOR, PriorState

Tensors = dict[str, NDArray[Any]]
_ARRAYS = ("log_probs", "counts", "quota", "confidence", "labels")
_DIGEST_BYTES = 32  # bytes by which a spent key, or the totals of a step, are remembered
_NOISY, _MEMBERS = "noisy_replies/", "members/"
_ACCEPTED = "holdout/accepted/"
_HARMS: tuple[Harm, ...] = get_args(Harm)


@dataclass(frozen=True)
class ClientState:
    """A client's arrays and memory between two requests. Never sent."""

    own: Prompts = field(default_factory=dict)  # arrays that are not shared; shared ones too, after a rollback
    previous_model: Prompts = field(default_factory=dict)  # at the end of the run that this one continues, if any
    log_probs: NDArray[np.float64] | None = None  # of the last estimate, until the selection is made from it
    counts: NDArray[np.int64] | None = None  # u_k of the last estimate
    quota: NDArray[np.int64] | None = None  # images of each class that the last selection was allowed
    selection: Selection | None = None
    confidence: NDArray[np.float64] | None = None  # log-probability of each selected image's label
    labels: NDArray[np.int32] | None = None  # the most probable class of every image at the last selection
    first_holdout: Selection | None = None  # the holdout of the first refresh, with its labels
    holdout: HoldoutState = field(default_factory=HoldoutState)
    prior: PriorState = NO_PRIOR
    secrets: Secrets = field(default_factory=Secrets)  # keys and noise, for privacy


def whole_model(start: Prompts, shared: Shared, state: ClientState) -> Prompts:
    """Combine the first arrays, the server's average and the client's own arrays into its model."""
    return {**start, **state.previous_model, **shared, **state.own}


def state_tensors(state: ClientState) -> Tensors:
    """Return a client's state as named arrays; `state_from` reads them back."""
    tensors: Tensors = {f"own/{name}": value for name, value in state.own.items()}
    tensors |= {f"previous_model/{name}": value for name, value in state.previous_model.items()}
    arrays = {name: getattr(state, name) for name in _ARRAYS}
    tensors |= {name: value for name, value in arrays.items() if value is not None}
    if state.selection is not None:
        tensors |= {"index": state.selection.index, "label": state.selection.label}
        if state.selection.candidates is not None:
            tensors["candidates"] = state.selection.candidates
    if state.first_holdout is not None:
        tensors |= {"first_holdout/index": state.first_holdout.index, "first_holdout/label": state.first_holdout.label}
    return tensors | _prior_tensors(state.prior) | _holdout_tensors(state.holdout) | secret_tensors(state.secrets)


def _prior_tensors(prior: PriorState) -> Tensors:
    """Return what a client keeps of the priors as named arrays."""
    arrays: dict[str, NDArray[Any] | None] = {
        "sent": prior.sent,
        "class_prior": prior.class_prior,
        "own_distances": prior.distances,
        "weight": None if prior.weight == 1 else np.array([prior.weight]),
        "refused": np.array([True]) if prior.refused else None,
    }
    arrays |= {f"totals/{number}": total for number, total in enumerate(prior.totals)}
    if prior.scores is not None:
        arrays["log_probs"] = prior.scores.log_probs
        arrays |= {f"contributions/{number}": value for number, value in prior.scores.contributions.items()}
        arrays |= {f"distances/{number}": value for number, value in prior.scores.distances.items()}
    if prior.model is not None:
        arrays |= {f"model/{name}": value for name, value in prior.model.to_arrays().items()}
    return {f"prior/{name}": np.asarray(value) for name, value in arrays.items() if value is not None}


def _prior_from(stored: Tensors) -> PriorState:
    """Return the state that `_prior_tensors` was given."""
    model, totals = below(stored, "model/"), below(stored, "totals/")
    contributions, distances = (
        {int(number): value for number, value in below(stored, part).items()}
        for part in ("contributions/", "distances/")
    )
    return PriorState(
        ClientScores(stored["log_probs"], contributions, distances) if "log_probs" in stored else None,
        tuple(totals[str(number)] for number in range(len(totals))),
        stored.get("sent"),
        float(stored.get("weight", [1.0])[0]),
        PosteriorModel.from_arrays(model) if model else None,
        stored.get("class_prior"),
        stored.get("own_distances"),
        "refused" in stored,
    )


def _holdout_tensors(holdout: HoldoutState) -> Tensors:
    """Return the state of the hold-out check as named arrays; empty before the first check."""
    tensors: Tensors = {f"{_ACCEPTED}{name}": value for name, value in holdout.accepted.items()}
    verdicts = {"average": holdout.average, "training": holdout.training}
    for name, verdict in verdicts.items():
        if verdict is not None:
            row = [_HARMS.index(verdict.harm), *verdict.before, *verdict.after, verdict.shift]
            tensors[f"holdout/{name}"] = np.array(row)
    if holdout.log_probs is not None:
        tensors["holdout/log_probs"] = holdout.log_probs
    numbers = np.array([holdout.lr_factor, holdout.was_reset])
    return tensors | ({} if numbers.tolist() == [1.0, 0.0] else {"holdout/numbers": numbers})


def _holdout_from(tensors: Tensors) -> HoldoutState:
    """Return the state that `_holdout_tensors` was given."""
    stored = below(tensors, "holdout/")
    lr_factor, was_reset = stored.get("numbers", np.array([1.0, 0.0])).tolist()
    verdicts = {}
    for name in (name for name in ("average", "training") if name in stored):
        harm, *numbers, shift = stored[name].tolist()
        verdicts[name] = HoldoutVerdict(_HARMS[int(harm)], Evidence(*numbers[:3]), Evidence(*numbers[3:]), shift)
    return HoldoutState(
        below(tensors, _ACCEPTED), stored.get("log_probs"), lr_factor, was_reset=bool(was_reset), **verdicts
    )


def secret_tensors(secrets: Secrets) -> Tensors:
    """Return keys and digests as named arrays of bytes, without empty ones."""
    session = secrets.session.to_bytes() if secrets.session else b""
    fields = {"session": session, "spent": b"".join(secrets.spent), "history": secrets.history.encode()}
    fields["totals"] = b"".join(secrets.prior_totals)
    fields |= {f"{_MEMBERS}{kind}": json.dumps(members).encode() for kind, members in secrets.members.items()}
    fields |= {f"{_NOISY}{kind}": reply.to_bytes() for kind, reply in secrets.noisy_replies.items()}
    return {f"secrets/{name}": np.frombuffer(value, np.uint8) for name, value in fields.items() if value}


def state_from(tensors: Tensors) -> ClientState:
    """Return the state that `state_tensors` was given."""
    has_chosen = "index" in tensors
    selection = Selection(tensors["index"], tensors["label"], tensors.get("candidates")) if has_chosen else None
    arrays: dict[str, Any] = {name: tensors.get(name) for name in _ARRAYS}
    first = below(tensors, "first_holdout/")
    return ClientState(
        own=below(tensors, "own/"),
        previous_model=below(tensors, "previous_model/"),
        selection=selection,
        first_holdout=Selection(first["index"], first["label"]) if first else None,
        holdout=_holdout_from(tensors),
        prior=_prior_from(below(tensors, "prior/")),
        secrets=secrets_from(tensors),
        **arrays,
    )


def secrets_from(tensors: Tensors) -> Secrets:
    """Return the secrets that `secret_tensors` was given."""
    stored = {name: value.tobytes() for name, value in below(tensors, "secrets/").items()}
    session = stored.get("session")
    spent, totals = (
        tuple(whole[start : start + _DIGEST_BYTES] for start in range(0, len(whole), _DIGEST_BYTES))
        for whole in (stored.get("spent", b""), stored.get("totals", b""))
    )
    return Secrets(
        Session.from_bytes(session) if session else None,
        spent,
        stored.get("history", b"").decode(),
        {key.removeprefix(_NOISY): NoisyQueries.from_bytes(stored[key]) for key in stored if key.startswith(_NOISY)},
        {key.removeprefix(_MEMBERS): tuple(json.loads(stored[key])) for key in stored if key.startswith(_MEMBERS)},
        totals,
    )


def taken_back(state: ClientState, latest: ClientState) -> ClientState:
    """Return an earlier state to resume from, with the keys and noise of the latest one.

    Otherwise a client could be made to unmask one sum in two ways, which would reveal what the masks hid, or to send
    the same reply again with new noise, which averages out.
    """
    return replace(state, secrets=replace(latest.secrets, history=state.secrets.history))


def below(tensors: Tensors, prefix: str) -> Tensors:
    """Return the arrays whose names start with the prefix, by the rest of their names."""
    return {key.removeprefix(prefix): np.asarray(value) for key, value in tensors.items() if key.startswith(prefix)}
