"""Questions and answers as plain data: a kind, a tree of JSON, and the arrays the tree points to.

Generic over the data classes of `messages`: a new message needs no new code here. What comes in is checked
against the field's type, so that nothing but what the list of messages allows gets past this module.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from ...messages import REPLY_TO, Ask, Reply

PackedArray = NDArray[Any]
KINDS: Mapping[str, type] = {kind.__name__: kind for pair in REPLY_TO.items() for kind in pair}
DEEPEST = 4  # levels of a tree: an array in a mapping in a tuple in a mapping


class Unreadable(ValueError):
    """A message that is not on the list, or not as the list says."""


class Packed(NamedTuple):
    """A message as it travels and as it is kept."""

    kind: str
    tree: str  # JSON of the fields; {"array": 3} and {"bytes": 3} point into `arrays`
    arrays: tuple[PackedArray, ...]


def pack(message: Ask | Reply) -> Packed:
    arrays: list[PackedArray] = []
    tree = {field.name: _tree(getattr(message, field.name), arrays) for field in fields(message)}
    return Packed(type(message).__name__, json.dumps(tree), tuple(arrays))


def _tree(value: Any, arrays: list[PackedArray]) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.integer() | np.floating():
            return value.item()
        case np.ndarray() | bytes():
            arrays.append(np.asarray(value, order="C") if isinstance(value, np.ndarray) else _octets(value))
            return {"bytes" if isinstance(value, bytes) else "array": len(arrays) - 1}
        case tuple() | list():
            return {"tuple": [_tree(one, arrays) for one in value]}
        case Mapping():
            return {"map": {key: _tree(one, arrays) for key, one in value.items()}}
    raise TypeError(f"a message cannot hold a {type(value).__name__}")


def _octets(value: bytes) -> PackedArray:
    return np.frombuffer(value, np.uint8)


def unpack(packed: Packed) -> Ask | Reply:
    """The message, or `Unreadable` with the first thing that is wrong with it."""
    if packed.kind not in KINDS:
        raise Unreadable(f"there is no message {_shown(packed.kind)}")
    kind = KINDS[packed.kind]
    try:
        tree = json.loads(packed.tree)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the {packed.kind} is no JSON") from error
    types = _types(kind)
    if not isinstance(tree, dict) or set(tree) != set(types):
        raise Unreadable(f"the {packed.kind} has other fields than {', '.join(types)}")
    values = {name: _value(tree[name], packed.arrays, DEEPEST) for name in types}
    for name, value in values.items():
        if not _fits(value, types[name]):
            raise Unreadable(f"{name} of the {packed.kind} is {_described(value)}")
    message: Ask | Reply = kind(**values)
    return message


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(tree: Any, arrays: tuple[PackedArray, ...], deepest: int) -> Any:
    if not isinstance(tree, dict):
        if isinstance(tree, list):
            raise Unreadable("a list stands where a value should be")
        return tree
    if len(tree) != 1 or not deepest:
        raise Unreadable("a value is nested too deep or of no known kind")
    [(kind, inside)] = tree.items()
    if kind == "map" and isinstance(inside, dict):
        return {key: _value(one, arrays, deepest - 1) for key, one in inside.items()}
    if kind == "tuple" and isinstance(inside, list):
        return tuple(_value(one, arrays, deepest - 1) for one in inside)
    if kind in {"array", "bytes"}:
        array = _pointed_at(inside, arrays)
        return array if kind == "array" else array.tobytes()
    raise Unreadable(f"there is no kind of value called {_shown(kind)}")


def _pointed_at(place: Any, arrays: tuple[PackedArray, ...]) -> PackedArray:
    if type(place) is not int or not 0 <= place < len(arrays):
        raise Unreadable(f"there is no array {_shown(place)}")
    return arrays[place]


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value is of the type that the data class names."""
    origin, inside = get_origin(wanted), get_args(wanted)
    if origin in {Union, UnionType}:
        return any(_fits(value, one) for one in inside)
    if origin is np.ndarray:
        return isinstance(value, np.ndarray) and _fits_dtype(value, inside[1])
    if origin is tuple:
        return isinstance(value, tuple) and _fit_tuple(value, inside)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, dict) and all(_fits(one, inside[1]) for one in value.values())
    return type(value) is (NoneType if wanted is None else wanted)


def _fit_tuple(value: tuple[Any, ...], inside: tuple[Any, ...]) -> bool:
    if inside[-1:] == (Ellipsis,):
        return all(_fits(one, inside[0]) for one in value)
    return len(value) == len(inside) and all(map(_fits, value, inside))


def _fits_dtype(value: PackedArray, wanted: Any) -> bool:
    [kind] = get_args(wanted) or (Any,)
    return kind is Any or value.dtype == np.dtype(kind)


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    if isinstance(value, dict | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return _shown(value)


def _shown(value: Any) -> str:
    """Somebody else's text, fit for a log."""
    return repr(value)[:60]
