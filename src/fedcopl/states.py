"""A client's state as named arrays, for a run's checkpoint and for a site's own file."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .client import ClientState
from .core.select import Selection

Tensors = dict[str, NDArray[Any]]
ARRAYS = ("log_probs", "counts", "quota", "confidence")


def state_tensors(state: ClientState) -> Tensors:
    tensors: Tensors = {f"own/{name}": value for name, value in state.own.items()}
    named = {name: getattr(state, name) for name in ARRAYS}
    tensors |= {name: value for name, value in named.items() if value is not None}
    if state.selection is not None:
        tensors |= {"index": state.selection.index, "label": state.selection.label}
        if state.selection.candidates is not None:
            tensors["candidates"] = state.selection.candidates
    return tensors


def state_from(tensors: Tensors) -> ClientState:
    """What `state_tensors` was given."""
    has_chosen = "index" in tensors
    selection = Selection(tensors["index"], tensors["label"], tensors.get("candidates")) if has_chosen else None
    named = {name: tensors.get(name) for name in ARRAYS}
    return ClientState(own=below(tensors, "own/"), selection=selection, **named)


def below(tensors: Tensors, prefix: str) -> Tensors:
    """The arrays whose names begin with the prefix, without it."""
    return {key.removeprefix(prefix): np.asarray(value) for key, value in tensors.items() if key.startswith(prefix)}
