"""The state of a client between two requests, and its conversion to named arrays for files. It is never sent."""

import json
from collections.abc import Mapping
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
from ..privacy.private_replies import NoisyReply, Secrets
from .learner import Prompts
from .prior_estimation import NO_PRIOR, PriorState

Tensors = dict[str, NDArray[Any]]
_ARRAYS = ("log_probs", "counts", "quota", "confidence", "labels")
_DIGEST_BYTES = 32  # of a used key, or of the totals of a step
_NOISY, _MEMBERS = "noisy_replies/", "members/"
_ACCEPTED = "holdout/accepted/"
_HARMS: tuple[Harm, ...] = get_args(Harm)


@dataclass(frozen=True)
class ClientState:
    """Everything that a client keeps between two requests. Never sent."""

    own: Prompts = field(default_factory=dict)  # arrays that are not shared; also shared ones after a rollback
    previous_model: Prompts = field(default_factory=dict)  # at the end of the run that this one continues, if any
    log_probs: NDArray[np.float64] | None = None  # (n_k, C), from an Estimate request to the next Select request
    counts: NDArray[np.int64] | None = None  # u_k of the last Estimate request
    quota: NDArray[np.int64] | None = None  # maximum number of images of each class in the last selection
    selection: Selection | None = None
    confidence: NDArray[np.float64] | None = None  # log-probability of each selected image's pseudo label
    labels: NDArray[np.int32] | None = None  # the most probable class of every image at the last selection
    first_holdout: Selection | None = None  # the holdout of the first refresh, with its pseudo labels
    holdout: HoldoutState = field(default_factory=HoldoutState)
    prior: PriorState = NO_PRIOR
    secrets: Secrets = field(default_factory=Secrets)  # keys and noise, for privacy


def same_arrays(arrays: Mapping[str, NDArray[Any]], others: Mapping[str, NDArray[Any]]) -> bool:
    return arrays.keys() == others.keys() and all(np.array_equal(arrays[name], others[name]) for name in arrays)


def whole_model(start: Prompts, shared: Shared, state: ClientState) -> Prompts:
    """Combine the initial arrays, the server's average and the client's own arrays into its model."""
    return {**start, **state.previous_model, **shared, **state.own}


def state_tensors(state: ClientState) -> Tensors:
    """Return a client's state as named arrays; `state_from` reads them back."""
    arrays: dict[str, NDArray[Any] | None] = {name: getattr(state, name) for name in _ARRAYS}
    if (selection := state.selection) is not None:
        arrays |= {"index": selection.index, "label": selection.label, "candidates": selection.candidates}
    if (first := state.first_holdout) is not None:
        arrays |= {"first_holdout/index": first.index, "first_holdout/label": first.label}
    tensors = add_prefix("", arrays) | add_prefix("own/", state.own)
    tensors |= add_prefix("previous_model/", state.previous_model) | add_prefix("prior/", _prior_tensors(state.prior))
    return tensors | _holdout_tensors(state.holdout) | secret_tensors(state.secrets)


def _prior_tensors(prior: PriorState) -> Tensors:
    """Return a client's state of the priors as named arrays."""
    arrays: dict[str, NDArray[Any] | None] = {
        "sent": prior.sent,
        "class_prior": prior.class_prior,
        "own_distances": prior.distances,
        "weight": None if prior.weight == 1 else np.array([prior.weight]),
        "refused": np.array([True]) if prior.refused else None,
    }
    tensors = add_prefix("", arrays) | add_prefix("totals/", dict(enumerate(prior.totals)))
    if (scores := prior.scores) is not None:
        tensors |= {"log_probs": scores.log_probs} | add_prefix("distances/", scores.distances)
        tensors |= add_prefix("contributions/", scores.contributions)
    return tensors | add_prefix("model/", {} if prior.model is None else prior.model.to_arrays())


def _prior_from(stored: Tensors) -> PriorState:
    """Invert `_prior_tensors`."""
    model, totals = select_prefix(stored, "model/"), select_prefix(stored, "totals/")
    contributions, distances = (
        {int(number): value for number, value in select_prefix(stored, prefix).items()}
        for prefix in ("contributions/", "distances/")
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
    arrays: dict[str, NDArray[Any] | None] = {"log_probs": holdout.log_probs}
    for name, verdict in (("average", holdout.average), ("training", holdout.training)):
        if verdict is not None:
            arrays[name] = np.array([_HARMS.index(verdict.harm), *verdict.before, *verdict.after, verdict.shift])
    if holdout.lr_factor != 1 or holdout.was_reset:
        arrays["numbers"] = np.array([holdout.lr_factor, holdout.was_reset])
    return add_prefix("holdout/", arrays) | add_prefix(_ACCEPTED, holdout.accepted)


def _holdout_from(tensors: Tensors) -> HoldoutState:
    """Invert `_holdout_tensors`."""
    stored = select_prefix(tensors, "holdout/")
    lr_factor, was_reset = stored.get("numbers", np.array([1.0, 0.0])).tolist()
    verdicts = {}
    for name in (name for name in ("average", "training") if name in stored):
        harm, *numbers, shift = stored[name].tolist()
        verdicts[name] = HoldoutVerdict(_HARMS[int(harm)], Evidence(*numbers[:3]), Evidence(*numbers[3:]), shift)
    return HoldoutState(
        select_prefix(tensors, _ACCEPTED), stored.get("log_probs"), lr_factor, was_reset=bool(was_reset), **verdicts
    )


def secret_tensors(secrets: Secrets) -> Tensors:
    """Return the non-empty fields of a client's secrets as named arrays of bytes; `secrets_from` inverts this."""
    session = secrets.session.to_bytes() if secrets.session else b""
    fields = {"session": session, "used_keys": b"".join(secrets.used_keys), "history": secrets.history.encode()}
    fields["totals"] = b"".join(secrets.prior_totals)
    fields |= {f"{_MEMBERS}{kind}": json.dumps(members).encode() for kind, members in secrets.members.items()}
    fields |= {f"{_NOISY}{kind}": reply.to_bytes() for kind, reply in secrets.noisy_replies.items()}
    return {f"secrets/{name}": np.frombuffer(value, np.uint8) for name, value in fields.items() if value}


def state_from(tensors: Tensors) -> ClientState:
    """Return the client's state from the named arrays of `state_tensors`."""
    selection = None
    if "index" in tensors:
        selection = Selection(tensors["index"], tensors["label"], tensors.get("candidates"))
    arrays: dict[str, Any] = {name: tensors.get(name) for name in _ARRAYS}
    first = select_prefix(tensors, "first_holdout/")
    return ClientState(
        own=select_prefix(tensors, "own/"),
        previous_model=select_prefix(tensors, "previous_model/"),
        selection=selection,
        first_holdout=Selection(first["index"], first["label"]) if first else None,
        holdout=_holdout_from(tensors),
        prior=_prior_from(select_prefix(tensors, "prior/")),
        secrets=secrets_from(tensors),
        **arrays,
    )


def secrets_from(tensors: Tensors) -> Secrets:
    """Return the client's secrets from the named arrays of `secret_tensors`."""
    stored = {name: value.tobytes() for name, value in select_prefix(tensors, "secrets/").items()}
    session = stored.get("session")
    used_keys, totals = (
        tuple(joined[start : start + _DIGEST_BYTES] for start in range(0, len(joined), _DIGEST_BYTES))
        for joined in (stored.get("used_keys", b""), stored.get("totals", b""))
    )
    return Secrets(
        Session.from_bytes(session) if session else None,
        used_keys,
        stored.get("history", b"").decode(),
        {key.removeprefix(_NOISY): NoisyReply.from_bytes(stored[key]) for key in stored if key.startswith(_NOISY)},
        {key.removeprefix(_MEMBERS): tuple(json.loads(stored[key])) for key in stored if key.startswith(_MEMBERS)},
        totals,
    )


def rewind(state: ClientState, latest: ClientState) -> ClientState:
    """Return an earlier state to resume from, with the keys and noisy replies of the latest one.

    With its earlier keys, a server could make the client unmask one sum in two ways, which would reveal a single
    client's numbers; without its noisy replies, the client would repeat a reply with new noise, which averages out.
    """
    return replace(state, secrets=replace(latest.secrets, history=state.secrets.history))


def add_prefix(prefix: str, arrays: Mapping[Any, NDArray[Any] | None]) -> Tensors:
    """Return the arrays that are not None, with the prefix before their names."""
    return {f"{prefix}{name}": np.asarray(value) for name, value in arrays.items() if value is not None}


def select_prefix(tensors: Tensors, prefix: str) -> Tensors:
    """Return the arrays whose names start with the prefix, by the rest of their names; inverts `add_prefix`."""
    return {key.removeprefix(prefix): np.asarray(value) for key, value in tensors.items() if key.startswith(prefix)}
