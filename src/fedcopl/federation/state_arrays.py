"""A client's state as named arrays, for a run's checkpoint and for a site's own file."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithm.select import Selection
from ..privacy.disclosure import LetOut, Secrets
from ..privacy.mask_session import Session
from .client import ClientState

Tensors = dict[str, NDArray[Any]]
ARRAYS = ("log_probs", "counts", "quota", "confidence", "labels")
SPENT = 32  # bytes by which a spent key is remembered
LET_OUT = "let_out/"


def state_tensors(state: ClientState) -> Tensors:
    tensors: Tensors = {f"own/{name}": value for name, value in state.own.items()}
    named = {name: getattr(state, name) for name in ARRAYS}
    tensors |= {name: value for name, value in named.items() if value is not None}
    if state.selection is not None:
        tensors |= {"index": state.selection.index, "label": state.selection.label}
        if state.selection.candidates is not None:
            tensors["candidates"] = state.selection.candidates
    return tensors | secret_tensors(state.secrets)


def secret_tensors(secrets: Secrets) -> Tensors:
    """Keys and digests as bytes; what there is not has no name."""
    session = secrets.session.to_bytes() if secrets.session else b""
    named = {"session": session, "spent": b"".join(secrets.spent), "history": secrets.history.encode()}
    named |= {f"{LET_OUT}{kind}": said.to_bytes() for kind, said in secrets.let_out.items()}
    return {f"secrets/{name}": np.frombuffer(value, np.uint8) for name, value in named.items() if value}


def state_from(tensors: Tensors) -> ClientState:
    """What `state_tensors` was given."""
    has_chosen = "index" in tensors
    selection = Selection(tensors["index"], tensors["label"], tensors.get("candidates")) if has_chosen else None
    arrays: dict[str, Any] = {name: tensors.get(name) for name in ARRAYS}
    return ClientState(own=below(tensors, "own/"), selection=selection, secrets=secrets_from(tensors), **arrays)


def secrets_from(tensors: Tensors) -> Secrets:
    """What `secret_tensors` was given."""
    stored = {name: value.tobytes() for name, value in below(tensors, "secrets/").items()}
    session, spent = stored.get("session"), stored.get("spent", b"")
    return Secrets(
        Session.from_bytes(session) if session else None,
        tuple(spent[start : start + SPENT] for start in range(0, len(spent), SPENT)),
        stored.get("history", b"").decode(),
        {key.removeprefix(LET_OUT): LetOut.from_bytes(stored[key]) for key in stored if key.startswith(LET_OUT)},
    )


def taken_back(state: ClientState, latest: ClientState) -> ClientState:
    """An earlier state to begin from again; but what keys were used for, and what was let out, stays as at the latest.

    Otherwise a client could be made to take off the masks of one secure sum in two ways, and lay bare what they hid;
    or to answer again and again with new noise each time, which an average takes off.
    """
    return replace(state, secrets=replace(latest.secrets, history=state.secrets.history))


def below(tensors: Tensors, prefix: str) -> Tensors:
    """The arrays whose names begin with the prefix, without it."""
    return {key.removeprefix(prefix): np.asarray(value) for key, value in tensors.items() if key.startswith(prefix)}
