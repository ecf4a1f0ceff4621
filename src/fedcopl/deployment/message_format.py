"""Serialisation of requests and replies; received data is never executed.

`pack` turns a message into plain data: a kind, a JSON tree of its fields, and the arrays that the tree refers to. It
works for all data classes of `messages`; a new message needs no code here. `request_records` and `reply_records` put
the packed message into Flower's records. A reader checks every field against its type. Arrays are in NumPy's file
format: the header is compared with the data before anything is allocated, and pickles, objects and archives are
refused. `audit_message` describes a message for the audit log.

A message is one record, the terms of its run are a second one: Flower sends every record, and every array of a record,
as a piece with four HTTP requests. A piece that is the same for all sites is sent to the SuperLink once.
"""

import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from hashlib import sha256
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..messages import REPLY_TO, Reply, Request
from .audit_log import AuditMessage
from .terms import SETTING, Terms

_PackedArray = NDArray[Any]
_KINDS: Mapping[str, type] = {kind.__name__: kind for pair in REPLY_TO.items() for kind in pair}
_MAX_DEPTH = 4  # levels of a tree: an array in a mapping in a tuple in a mapping
_DTYPES = {np.dtype(kind) for kind in ("f4", "f8", "i4", "i8", "u1", "u4", "u8", "?")}
_MESSAGE, _ARRAYS, _TERMS, _REFUSED, _NAME = "message", "arrays", "terms", "refused", "name"
NAME_QUERY = f"query.{_NAME}"  # a message of Flower's grid that is not part of the protocol
_MAX_REASON = 300
_MAX_SIZE = 2**40  # of any dimension of an array
_types = cache(get_type_hints)


class Unreadable(ValueError):
    """The message is not one of `messages`, or its fields have other types."""


class Packed(NamedTuple):
    """A serialised message, to be sent or stored."""

    kind: str
    tree: str  # JSON of the fields; {"array": 3} and {"bytes": 3} refer to `arrays[3]`
    arrays: tuple[_PackedArray, ...]


def pack(message: Request | Reply) -> Packed:
    """Serialise a message."""
    arrays: list[_PackedArray] = []
    tree = {field.name: _encode(getattr(message, field.name), arrays) for field in fields(message)}
    return Packed(type(message).__name__, json.dumps(tree), tuple(arrays))


def _encode(value: Any, arrays: list[_PackedArray]) -> Any:
    """Return the JSON tree of a value, and append its arrays and bytes to `arrays`."""
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
            return {"tuple": [_encode(item, arrays) for item in value]}
        case Mapping():
            return {"map": {key: _encode(item, arrays) for key, item in value.items()}}
    raise TypeError(f"a message cannot hold a {type(value).__name__}")


def unpack(packed: Packed) -> Request | Reply:
    """Return the message, or raise `Unreadable` with its first error."""
    if packed.kind not in _KINDS:
        raise Unreadable(f"unknown message {_shortened(packed.kind)}")
    kind = _KINDS[packed.kind]
    try:
        tree = json.loads(packed.tree)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"message {packed.kind} is not valid JSON") from error
    types = _types(kind)
    if not isinstance(tree, dict) or set(tree) != set(types):
        raise Unreadable(f"message {packed.kind} has fields other than {', '.join(types)}")
    values = {name: _decode(tree[name], packed.arrays, _MAX_DEPTH) for name in tree}
    for name, value in values.items():
        if not _has_type(value, types[name]):
            raise Unreadable(f"field {name} of message {packed.kind} has the wrong type: {_description(value)}")
    message: Request | Reply = kind(**values)
    return message


def _decode(tree: Any, arrays: tuple[_PackedArray, ...], depth: int) -> Any:
    """Return the value of a JSON tree of at most `depth` levels; `Unreadable` if it is malformed."""
    if not isinstance(tree, dict):
        if isinstance(tree, list):
            raise Unreadable("a list without a kind: expected map, tuple, array or bytes")
        return tree
    if len(tree) != 1 or not depth:
        raise Unreadable("a value is nested too deep or of an unknown kind")
    [(kind, content)] = tree.items()
    if kind == "map" and isinstance(content, dict):
        return {key: _decode(item, arrays, depth - 1) for key, item in content.items()}
    if kind == "tuple" and isinstance(content, list):
        return tuple(_decode(item, arrays, depth - 1) for item in content)
    if kind in {"array", "bytes"}:
        if type(content) is not int or not 0 <= content < len(arrays):
            raise Unreadable(f"there is no array {_shortened(content)}")
        array = arrays[content]
        return array if kind == "array" else array.tobytes()
    raise Unreadable(f"unknown kind of value {_shortened(kind)}")


def _has_type(value: Any, hint: Any) -> bool:
    """Return whether a value is of the type that the data class declares."""
    origin, parameters = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        return any(_has_type(value, option) for option in parameters)
    if origin is np.ndarray:
        [kind] = get_args(parameters[1]) or (Any,)
        return isinstance(value, np.ndarray) and (kind is Any or value.dtype == np.dtype(kind))
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = (parameters[0],) * len(value) if parameters[-1:] == (Ellipsis,) else parameters
        return len(value) == len(kinds) and all(map(_has_type, value, kinds))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, dict) and all(_has_type(item, parameters[1]) for item in value.values())
    return type(value) is (NoneType if hint is None else hint)


def _description(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    if isinstance(value, dict | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return _shortened(value)


def _shortened(value: Any) -> str:
    """Return an untrusted value as text, shortened for a log."""
    return repr(value)[:60]


def route(kind: type) -> str:
    """Return the route of a request in Flower's ClientApp.

    >>> from fedcopl.messages import Train
    >>> route(Train)
    'query.train'
    """
    return f"query.{kind.__name__.lower()}"


def request_records(request: Request, terms: Terms) -> RecordDict:
    """Return the records of a request, with the terms of its run."""
    records = _records(pack(request))
    flat = {key: value for key, value in asdict(terms).items() if key != "settings"}
    flat |= {f"{SETTING}{key}": value for key, value in terms.settings.items()}
    records[_TERMS] = ConfigRecord(flat)
    return records


def read_request(records: RecordDict, max_bytes: int) -> tuple[Request, Terms]:
    """Return a request of at most `max_bytes`, and its terms."""
    request = unpack(_read_packed(records, max_bytes))
    if type(request) not in REPLY_TO:
        raise Unreadable(f"a {type(request).__name__} is not a request")
    return cast(Request, request), _read_terms(records)


def reply_records(reply: Reply, request_digest: str, folder_id: str) -> RecordDict:
    """Return the records of a reply, with the digest of its request and a random id of the site's folder."""
    return _records(pack(reply), {"to": request_digest, "from": folder_id})


def refusal_records(reason: str) -> RecordDict:
    """Return the records of a refusal."""
    return RecordDict({_REFUSED: ConfigRecord({"reason": one_line(reason)})})


def refusal_of(records: RecordDict) -> str:
    """Return the text of a refusal; an empty string for any other message."""
    refusal = records.config_records.get(_REFUSED)
    return "" if refusal is None else f"refused: {one_line(refusal.get('reason'))}"


def read_reply(records: RecordDict, request_digest: str, max_bytes: int) -> tuple[Reply, str]:
    """Return the reply to the request with this digest, and the id of the site's folder.

    Raises:
        Unreadable: the reply is malformed, a refusal, or to another request.
    """
    if refusal_of(records):
        raise Unreadable(refusal_of(records))
    packed = _read_packed(records, max_bytes)
    if records.config_records[_MESSAGE].get("to") != request_digest:
        raise Unreadable("the reply is to another request: an old one, or one of another round")
    return cast(Reply, unpack(packed)), one_line(records.config_records[_MESSAGE].get("from", ""))


def name_records(name: str) -> RecordDict:
    """Return the reply to `NAME_QUERY`."""
    return RecordDict({_NAME: ConfigRecord({_NAME: name})})


def read_name(records: RecordDict) -> str:
    """Return the name in the reply to `NAME_QUERY`."""
    return one_line(records.config_records.get(_NAME, ConfigRecord()).get(_NAME, ""))


def one_line(text: Any) -> str:
    """Return untrusted text in one printable line of limited length."""
    line = "".join(c if c.isprintable() else " " for c in str(text)[: _MAX_REASON + 1])
    return line if len(line) <= _MAX_REASON else f"{line[:_MAX_REASON]}..."


def _records(packed: Packed, extra: dict[str, str] | None = None) -> RecordDict:
    record: dict[str, Any] = {"kind": packed.kind, "tree": packed.tree, **(extra or {})}
    if packed.arrays:
        record[_ARRAYS] = [_array_bytes(array) for array in packed.arrays]
    return RecordDict({_MESSAGE: ConfigRecord(record)})


def _array_bytes(array: _PackedArray) -> bytes:
    stream = io.BytesIO()
    npy.write_array(stream, array, version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def _read_packed(records: RecordDict, max_bytes: int) -> Packed:
    record: Mapping[str, Any] = records.config_records.get(_MESSAGE, ConfigRecord())
    kind, tree, arrays = record.get("kind"), record.get("tree"), record.get(_ARRAYS, [])
    if not isinstance(kind, str) or not isinstance(tree, str):
        raise Unreadable("the record has no fedcopl message")
    if not isinstance(arrays, list) or not all(isinstance(array, bytes) for array in arrays):
        raise Unreadable("the arrays of the message are not bytes")
    size = len(tree) + sum(map(len, arrays))
    if size > max_bytes:
        raise Unreadable(f"the message has {size:,} bytes, more than the limit of {max_bytes:,}")
    return Packed(kind, tree, tuple(map(_read_array, arrays)))


def _read_array(content: bytes) -> _PackedArray:
    """Parse untrusted bytes in the format of `np.save`."""
    stream = io.BytesIO(content)
    try:
        version = npy.read_magic(stream)
        shape, fortran, dtype = npy.read_array_header_1_0(stream)
        data = content[stream.tell() :]
        if version != (1, 0):
            raise Unreadable("an array has an unknown format")
        if dtype not in _DTYPES or fortran:
            raise Unreadable(f"an array has dtype {one_line(dtype)}, which no message has")
        if any(type(size) is not int or not 0 <= size <= _MAX_SIZE for size in shape):
            raise Unreadable("an array has a size below 0 or above the limit")
        if math.prod(shape) * dtype.itemsize != len(data):
            raise Unreadable(f"an array of {one_line(shape)} has {len(data):,} bytes")
        return np.frombuffer(data, dtype).reshape(shape)
    except Unreadable:
        raise
    except Exception as error:  # a hostile header may cause any error in the parser
        raise Unreadable("an array has a broken header") from error


def _read_terms(records: RecordDict) -> Terms:
    flat: dict[str, Any] = dict(records.config_records.get(_TERMS, ConfigRecord()))
    settings = {key.removeprefix(SETTING): flat.pop(key) for key in list(flat) if key.startswith(SETTING)}
    kinds = {"run": str, "attempt": int, "number": int, "version": str, "classes": str, "model": str}
    if {key: type(value) for key, value in flat.items()} != kinds:
        raise Unreadable(f"the request's fields about its run are missing or invalid ({', '.join(kinds)}, settings)")
    return Terms(**flat, settings=settings)


def _content_bytes(records: RecordDict) -> bytes:
    """Serialise the content of a message in a fixed order: the same bytes at the sender and at the receiver."""
    parts: list[bytes] = []
    for name in sorted(records):
        for key, value in sorted(records[name].items()):
            parts += [name.encode(), str(key).encode()]
            data: Any = getattr(value, "data", value)  # the bytes of an array, if the value is one
            is_list = isinstance(data, list) and all(isinstance(one, bytes) for one in data)
            parts += data if is_list else [data if isinstance(data, bytes) else repr(value).encode()]
    return b"\n".join(parts)


def audit_message(
    message: Message, direction: str, peer: str, decision: str, request: Message | None = None
) -> AuditMessage:
    """Describe a message for the audit log; run, round and kind of a reply are those of its `request`."""
    source = request or message
    terms = source.content.config_records.get(_TERMS, ConfigRecord()) if source.has_content() else ConfigRecord()
    content = _content_bytes(message.content) if message.has_content() else str(message.error.reason).encode()
    return AuditMessage(
        direction=direction,
        peer=one_line(peer),
        run=one_line(terms.get("run", "")),
        round=one_line(source.metadata.group_id),
        kind=one_line(source.metadata.message_type.removeprefix("query.")),
        bytes=len(content),
        digest=sha256(content).hexdigest(),
        decision=one_line(decision),
    )
