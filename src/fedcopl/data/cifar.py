"""CIFAR-10 and CIFAR-100 in both official forms: python pickles and plain binary files.

Unpickling may call any function by name. Here only the stand-ins below can be called, which record their arguments;
any other name is refused.
"""

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import Data
from ..errors import DataError
from ..plurals import counted
from .dataset import Dataset, ImageSet, clean_all
from .folder import require_folder
from .images import ImageArrays


class _Array:
    """State of a pickled array: (version, shape, dtype, Fortran order, bytes)."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


class _Dtype:
    name: object = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Byte order does not matter for single bytes."""


class _NdarrayType:
    """Stand-in for the class numpy.ndarray."""


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _dtype(name: object, *_: object) -> _Dtype:
    dtype = _Dtype()
    dtype.name = name
    return dtype


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Stand-in for `_codecs.encode`, by which Python 3 writes bytes in old protocols."""
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
            raise pickle.UnpicklingError(f"calls {module}.{name}, which a file of images does not need")
        return STAND_INS[module, name]


def load_plain(content: bytes) -> Any:
    """Unpickle dicts, lists, numbers, bytes and arrays of bytes; anything else raises ValueError."""
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


TEMPLATE = "a photo of a {}."
PIXELS = 3 * 32 * 32
CifarBatch = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Stored pixels, (n, 3072), and labels."""


@dataclass(frozen=True)
class _Form:
    """An official file format: folder, files and the number of images in each."""

    folder: str
    train: Sequence[str]
    test: Sequence[str]
    labels: str | int  # key in a pickle, or number of label bytes before the pixels, of which the last is used
    sizes: tuple[int, int]  # images in each file of train and test


TEN = (
    _Form("cifar-10-batches-py", [f"data_batch_{n}" for n in range(1, 6)], ["test_batch"], "labels", (10000, 10000)),
    _Form("cifar-10-batches-bin", [f"data_batch_{n}.bin" for n in range(1, 6)], ["test_batch.bin"], 1, (10000, 10000)),
)
HUNDRED = (
    _Form("cifar-100-python", ["train"], ["test"], "fine_labels", (50000, 10000)),
    _Form("cifar-100-binary", ["train.bin"], ["test.bin"], 2, (50000, 10000)),
)
TEN_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
HUNDRED_CLASSES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man
    maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
    plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail
    snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
    tulip turtle wardrobe whale willow_tree wolf woman worm
""".split()


def read_cifar10(data: Data, forms: Sequence[_Form] = TEN) -> Dataset:
    return _read("cifar10", data, forms, TEN_CLASSES)


def read_cifar100(data: Data, forms: Sequence[_Form] = HUNDRED) -> Dataset:
    return _read("cifar100", data, forms, HUNDRED_CLASSES)


def _read(name: str, data: Data, forms: Sequence[_Form], classes: Sequence[str]) -> Dataset:
    root = require_folder(data.path, name)
    folder, form = _find(root, name, forms)
    missing = [file for file in (*form.train, *form.test) if not (folder / file).is_file()]
    if missing:
        raise DataError(f"{folder}: {', '.join(missing)} is missing; {name} needs all of its official files")
    return Dataset(
        name,
        clean_all(classes, name),
        TEMPLATE,
        _image_set(folder, form.train, form.sizes[0], form, len(classes)),
        _image_set(folder, form.test, form.sizes[1], form, len(classes)),
    )


def _find(root: Path, name: str, forms: Sequence[_Form]) -> tuple[Path, _Form]:
    """Find the folder of one of the formats: the root, or its official name in the root."""
    for form in forms:
        for folder in (root, root / form.folder):
            if any((folder / file).is_file() for file in (*form.train, *form.test)):
                return folder, form
    known = " or ".join(form.folder for form in forms)
    raise DataError(f"{root}: holds no {known}; fetch it with: fedcopl data get {name} {root}")


def _image_set(folder: Path, files: Sequence[str], size: int, form: _Form, classes: int) -> ImageSet:
    batches = [_batch(folder / file, size, form, classes) for file in files]
    pixels = np.concatenate([pixels for pixels, _ in batches])
    # Stored channel by channel.
    rows = np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    names = [f"{file}/{number}" for file in files for number in range(size)]
    return ImageSet(ImageArrays(rows), np.concatenate([labels for _, labels in batches]), names)


def _batch(file: Path, size: int, form: _Form, classes: int) -> CifarBatch:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    key = form.labels
    pixels, labels = _pickled(file, content, key) if isinstance(key, str) else _binary(file, content, key, size)
    if pixels.shape != (size, PIXELS) or labels.shape != (size,):
        raise DataError(f"{file}: should hold {counted(size, 'image')}, but has {len(pixels):,}; fetch it again")
    if not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(f"{file}: has labels from {labels.min()} to {labels.max()}; {classes} classes are known")
    return pixels, labels


def _pickled(file: Path, content: bytes, key: str) -> CifarBatch:
    try:
        batch = load_plain(content)
        return np.asarray(batch["data"], np.uint8), np.array(batch[key], np.int64)
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{file}: is not one of CIFAR's pickles: {error}; fetch it again") from error


def _binary(file: Path, content: bytes, labels: int, size: int) -> CifarBatch:
    """Parse rows of one or two label bytes and 3,072 pixels; the first of two labels is the coarse one."""
    if len(content) != size * (labels + PIXELS):
        raise DataError(
            f"{file}: should be {size * (labels + PIXELS):,} bytes long, not {len(content):,}; fetch it again"
        )
    rows = np.frombuffer(content, np.uint8).reshape(size, labels + PIXELS)
    return rows[:, labels:], rows[:, labels - 1].astype(np.int64)
