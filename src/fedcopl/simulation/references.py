"""Pickles of two processes that talk by turns: a large array which the other side has sent is named, not sent back.

So a client's state comes back from a worker with the very arrays that were sent along with it, and what all clients
were told is in memory once, not once for each of them.
"""

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGE = 1024  # bytes: smaller arrays are not worth a name
Arrays = list[NDArray[Any]]


class _Naming(pickle.Pickler):
    """Every large array becomes a number: its place among those known, or behind them."""

    def __init__(self, file: io.BytesIO, known: Arrays):
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.numbers = {id(array): number for number, array in enumerate(known)}
        self.known, self.new = len(known), Arrays()

    def persistent_id(self, thing: Any) -> int | None:
        if type(thing) is not np.ndarray or thing.nbytes < LARGE:
            return None
        if id(thing) not in self.numbers:
            self.numbers[id(thing)] = self.known + len(self.new)
            self.new.append(thing)
        return self.numbers[id(thing)]


class _Finding(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, arrays: Arrays):
        super().__init__(file)
        self.arrays = arrays

    def persistent_load(self, number: int) -> NDArray[Any]:
        return self.arrays[number]


def written(thing: Any, known: Arrays) -> tuple[bytes, Arrays]:
    """What to send, and the arrays that the other side will have got with it.

    >>> told = np.zeros(1000)
    >>> message, sent = written({"a": told, "b": [told]}, [])
    >>> heard, got = read(message, [])
    >>> answer, _ = written((heard["b"][0], heard["a"]), got)
    >>> one, other = read(answer, sent)[0]
    >>> one is told and other is told, len(message) > 8000, len(answer) < 200
    (True, True, True)
    """
    file = io.BytesIO()
    pickler = _Naming(file, known)
    pickler.dump(thing)
    return pickle.dumps((file.getvalue(), pickler.new), pickle.HIGHEST_PROTOCOL), pickler.new


def read(message: bytes, known: Arrays) -> tuple[Any, Arrays]:
    """The thing that was written, and the arrays that came with it; `known` is what was sent in the message before."""
    body, new = pickle.loads(message)
    return _Finding(io.BytesIO(body), known + new).load(), new
