"""Reading CIFAR's pickles without running anything that is in them.

A pickle is a small program that may call any function by name. Here a name means one of three stand-ins that only
remember what they are given; any other name is refused, and NumPy itself is never called from the file.
"""

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Array:
    """What an array was made from: (version, shape, dtype, Fortran order, bytes)."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


class _Dtype:
    name: object = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Byte order and such: of no matter for single bytes."""


class _NdarrayType:
    """Stands for the class numpy.ndarray, which is only mentioned."""


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _dtype(name: object, *_: object) -> _Dtype:
    dtype = _Dtype()
    dtype.name = name
    return dtype


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """How Python 3 spells bytes in old protocols."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("holds text in an unexpected encoding")
    return text.encode("latin1")


STAND_INS: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _NdarrayType,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which has no place in a file of images")
        return STAND_INS[module, name]


def load_plain(content: bytes) -> Any:
    """Dicts, lists, numbers, bytes, and arrays of bytes; anything else is a ValueError that says what."""
    try:
        return _plain(_Unpickler(io.BytesIO(content), encoding="bytes").load())
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(str(error) or type(error).__name__) from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_text(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return _as_array(value) if isinstance(value, _Array) else value


def _text(key: Any) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)


def _as_array(made: _Array) -> NDArray[np.uint8]:
    _, shape, dtype, fortran, data = made.state
    if not isinstance(dtype, _Dtype) or dtype.name not in ("u1", b"u1") or not isinstance(data, bytes):
        raise ValueError("holds an array of something else than bytes")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")
