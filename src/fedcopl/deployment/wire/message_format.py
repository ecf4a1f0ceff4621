"""Questions and answers as they cross the wire. Nothing that comes in is ever executed.

In two steps. `pack` makes of a message plain data: a kind, a tree of JSON, and the arrays the tree points to; generic
over the data classes of `messages`, so that a new message needs no new code here. `question_records` and
`answer_records` make of that Flower's records. On the way back every field is checked against its type, so that nothing
but what the list of messages allows gets past this module; and of an array, which travels in NumPy's own format, the
header is read and compared with what follows before anything is allocated: no pickle, no object, no archive.

A message is one record, and its terms a second one: Flower sends every record and every array of a record by itself,
and each such piece is four requests on its way. What all sites are asked alike is sent to the SuperLink once.
"""

import io
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from ...messages import REPLY_TO, Reply, Request
from .terms import SETTING, Terms

PackedArray = NDArray[Any]
KINDS: Mapping[str, type] = {kind.__name__: kind for pair in REPLY_TO.items() for kind in pair}
DEEPEST = 4  # levels of a tree: an array in a mapping in a tuple in a mapping
DTYPES = {np.dtype(kind) for kind in ("f4", "f8", "i4", "i8", "u1", "u4", "u8", "?")}
MESSAGE, ARRAYS, TERMS, REFUSED, NAME = "message", "arrays", "terms", "refused", "name"
ASK_NAME = f"query.{NAME}"  # a question of Flower's grid that is none of the protocol's
LONGEST_REASON = 300
LARGEST = 2**40  # of any side of an array


class Unreadable(ValueError):
    """A message that is not on the list, or not as the list says."""


class Packed(NamedTuple):
    """A message as it travels and as it is kept."""

    kind: str
    tree: str  # JSON of the fields; {"array": 3} and {"bytes": 3} point into `arrays`
    arrays: tuple[PackedArray, ...]


def pack(message: Request | Reply) -> Packed:
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
            is_array = isinstance(value, np.ndarray)
            arrays.append(np.asarray(value, order="C") if is_array else np.frombuffer(value, np.uint8))
            return {"array" if is_array else "bytes": len(arrays) - 1}
        case tuple() | list():
            return {"tuple": [_tree(one, arrays) for one in value]}
        case Mapping():
            return {"map": {key: _tree(one, arrays) for key, one in value.items()}}
    raise TypeError(f"a message cannot hold a {type(value).__name__}")


def unpack(packed: Packed) -> Request | Reply:
    """The message, or `Unreadable` with the first thing that is wrong with it."""
    if packed.kind not in KINDS:
        raise Unreadable(f"there is no message {_shown(packed.kind)}")
    kind = KINDS[packed.kind]
    try:
        tree = json.loads(packed.tree)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the {packed.kind} is no JSON") from error
    types = _types(kind)
    if not isinstance(tree, dict) or not _needed(kind) <= set(tree) <= set(types):
        raise Unreadable(f"the {packed.kind} has other fields than {', '.join(types)}")
    values = {name: _value(tree[name], packed.arrays, DEEPEST) for name in tree}
    for name, value in values.items():
        if not _fits(value, types[name]):
            raise Unreadable(f"{name} of the {packed.kind} is {_described(value)}")
    message: Request | Reply = kind(**values)
    return message


@cache
def _needed(kind: type) -> set[str]:
    """The fields that a message cannot be without; what an older version did not know yet has a default."""
    return {part.name for part in fields(kind) if part.default is MISSING and part.default_factory is MISSING}


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


def _pointed_at(number: Any, arrays: tuple[PackedArray, ...]) -> PackedArray:
    if type(number) is not int or not 0 <= number < len(arrays):
        raise Unreadable(f"there is no array {_shown(number)}")
    return arrays[number]


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


def route(kind: type) -> str:
    """Where Flower's ClientApp takes a question to.

    >>> from fedcopl.messages import Train
    >>> route(Train)
    'query.train'
    """
    return f"query.{kind.__name__.lower()}"


def question_records(request: Request, terms: Terms) -> RecordDict:
    records = _records(pack(request))
    flat = {key: value for key, value in asdict(terms).items() if key != "settings"}
    flat |= {f"{SETTING}{key}": value for key, value in terms.settings.items()}
    records[TERMS] = ConfigRecord(flat)
    return records


def read_question(records: RecordDict, most: int) -> tuple[Request, Terms]:
    """A question, and on what terms it is asked; at most `most` bytes of arrays."""
    request = unpack(_packed(records, most))
    if type(request) not in REPLY_TO:
        raise Unreadable(f"a {type(request).__name__} is no question")
    return cast(Request, request), _terms(records)


def answer_records(reply: Reply, question: str, folder: str) -> RecordDict:
    """An answer, the digest of the question it is to, and a name of nothing but this site's folder."""
    return _records(pack(reply), {"to": question, "from": folder})


def refusal_records(reason: str) -> RecordDict:
    return RecordDict({REFUSED: ConfigRecord({"reason": one_line(reason)})})


def is_refusal(records: RecordDict) -> bool:
    return REFUSED in records.config_records


def read_answer(records: RecordDict, question: str, most: int) -> tuple[Reply, str]:
    """The answer to this question and whence it came, or `Unreadable`, also if it is to another one or a refusal."""
    if is_refusal(records):
        raise Unreadable(f"refused: {one_line(records.config_records[REFUSED].get('reason'))}")
    packed = _packed(records, most)
    if records.config_records[MESSAGE].get("to") != question:
        raise Unreadable("answered another question than was asked: an old answer, or of another round")
    return cast(Reply, unpack(packed)), one_line(records.config_records[MESSAGE].get("from", ""))


def name_records(name: str) -> RecordDict:
    """What a site says when it is asked for nothing but its name."""
    return RecordDict({NAME: ConfigRecord({NAME: name})})


def read_name(records: RecordDict) -> str:
    return one_line(records.config_records.get(NAME, ConfigRecord()).get(NAME, ""))


def one_line(text: Any) -> str:
    """Somebody else's text, harmless to print and not too long."""
    words = "".join(c if c.isprintable() else " " for c in str(text)[: LONGEST_REASON + 1])
    return words if len(words) <= LONGEST_REASON else f"{words[:LONGEST_REASON]}..."


def _records(packed: Packed, also: dict[str, str] | None = None) -> RecordDict:
    about: dict[str, Any] = {"kind": packed.kind, "tree": packed.tree, **(also or {})}
    arrays = {ARRAYS: [_saved(array) for array in packed.arrays]} if packed.arrays else {}
    return RecordDict({MESSAGE: ConfigRecord({**about, **arrays})})


def _saved(array: PackedArray) -> bytes:
    stream = io.BytesIO()
    npy.write_array(stream, array, version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def _packed(records: RecordDict, most: int) -> Packed:
    about = records.config_records.get(MESSAGE)
    if about is None or not isinstance(about.get("kind"), str) or not isinstance(about.get("tree"), str):
        raise Unreadable("holds no message")
    stored = about.get(ARRAYS, [])
    if not isinstance(stored, list) or not all(isinstance(one, bytes) for one in stored):
        raise Unreadable("its arrays are no bytes")
    saved = cast(list[bytes], stored)
    size = len(str(about["tree"])) + sum(map(len, saved))
    if size > most:
        raise Unreadable(f"holds {size:,} bytes; no answer to this question has more than {most:,}")
    return Packed(str(about["kind"]), str(about["tree"]), tuple(map(_read_array, saved)))


def _read_array(saved: bytes) -> NDArray[Any]:
    """What `np.save` wrote, read without trusting a byte of it."""
    try:
        return _parsed(saved)
    except Unreadable:
        raise
    except Exception as error:  # whatever a hostile header may set off, in a parser or in what its numbers are used for
        raise Unreadable("an array has a broken header") from error


def _parsed(saved: bytes) -> NDArray[Any]:
    stream = io.BytesIO(saved)
    version = npy.read_magic(stream)
    shape, fortran, dtype = npy.read_array_header_1_0(stream)
    if version != (1, 0):
        raise Unreadable("an array is of an unknown format")
    data = saved[stream.tell() :]
    if dtype not in DTYPES or fortran:
        raise Unreadable(f"an array is of {one_line(dtype)}, which no message holds")
    if any(type(size) is not int or not 0 <= size <= LARGEST for size in shape):
        raise Unreadable("an array has a shape that no array can have")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise Unreadable(f"an array of {one_line(shape)} has {len(data):,} bytes")
    return np.frombuffer(data, dtype).reshape(shape)


def _terms(records: RecordDict) -> Terms:
    flat: dict[str, Any] = dict(records.config_records.get(TERMS, ConfigRecord()))
    settings = {key.removeprefix(SETTING): flat.pop(key) for key in list(flat) if key.startswith(SETTING)}
    kinds = {"run": str, "attempt": int, "number": int, "version": str, "classes": str, "model": str}
    if {key: type(value) for key, value in flat.items()} != kinds:
        raise Unreadable("a question came without its terms")
    return Terms(**flat, settings=settings)
