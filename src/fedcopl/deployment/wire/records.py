"""Questions and answers as Flower's records, and back. Nothing that comes in is ever executed.

Arrays travel as Flower's `Array`, which is NumPy's own format; here its header is read and compared with what follows
before anything is allocated, and only plain numbers are let in: no pickle, no object, no archive.
"""

import io
import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from ...messages import REPLY_TO, Ask, Reply
from .packing import Packed, Unreadable, pack, unpack
from .terms import SETTING, Terms

NUMPY = "numpy.ndarray"  # the only way of writing arrays that is read
DTYPES = {np.dtype(kind) for kind in ("f4", "f8", "i4", "i8", "u1", "u4", "u8", "?")}
MESSAGE, ARRAYS, TERMS, REFUSED = "message", "arrays", "terms", "refused"
LONGEST_REASON = 300
LARGEST = 2**40  # of any side of an array


def question_records(ask: Ask, terms: Terms) -> RecordDict:
    records = _records(pack(ask))
    flat = {key: value for key, value in asdict(terms).items() if key != "settings"}
    flat |= {f"{SETTING}{key}": value for key, value in terms.settings.items()}
    records[TERMS] = ConfigRecord(flat)
    return records


def read_question(records: RecordDict, most: int) -> tuple[Ask, Terms]:
    """A question, and on what terms it is asked; at most `most` bytes of arrays."""
    ask = unpack(_packed(records, most))
    if type(ask) not in REPLY_TO:
        raise Unreadable(f"a {type(ask).__name__} is no question")
    return cast(Ask, ask), _terms(records)


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


def one_line(text: Any) -> str:
    """Somebody else's text, harmless to print and not too long."""
    words = "".join(c if c.isprintable() else " " for c in str(text)[: LONGEST_REASON + 1])
    return words if len(words) <= LONGEST_REASON else f"{words[:LONGEST_REASON]}..."


def _records(packed: Packed, also: dict[str, str] | None = None) -> RecordDict:
    about = {"kind": packed.kind, "tree": packed.tree, **(also or {})}
    arrays = {str(place): Array(array) for place, array in enumerate(packed.arrays)}
    return RecordDict({MESSAGE: ConfigRecord(dict(about)), ARRAYS: ArrayRecord(arrays)})


def _packed(records: RecordDict, most: int) -> Packed:
    about = records.config_records.get(MESSAGE)
    if about is None or not isinstance(about.get("kind"), str) or not isinstance(about.get("tree"), str):
        raise Unreadable("holds no message")
    stored = records.array_records.get(ARRAYS, ArrayRecord())
    if set(stored) != {str(place) for place in range(len(stored))}:
        raise Unreadable("its arrays are not numbered")
    in_order = [stored[str(place)] for place in range(len(stored))]
    _refuse_large([about["tree"], *(array.data for array in in_order)], most)
    return Packed(str(about["kind"]), str(about["tree"]), tuple(map(_read_array, in_order)))


def _refuse_large(parts: Iterable[Any], most: int) -> None:
    size = sum(len(part) for part in parts)
    if size > most:
        raise Unreadable(f"holds {size:,} bytes; no answer to this question has more than {most:,}")


def _read_array(array: Array) -> NDArray[Any]:
    """What `np.save` wrote, read without trusting a byte of it."""
    if array.stype != NUMPY:
        raise Unreadable(f"an array is written as {one_line(array.stype)}")
    try:
        return _parsed(array.data)
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
