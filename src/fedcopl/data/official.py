"""Readers of the paper's data sets as published: CIFAR, DTD, RESISC45, CUB-200-2011, UCF101; sizes are checked.

CIFAR is published as pickles and as binary files. A pickle may call any function by name. Here only the replacements
below can be called, which record their arguments; a pickle that calls anything else is refused.
"""

import io
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import Data
from ..errors import DataError
from ..files import parse_json, read_limited
from ..plurals import counted
from .dataset import ClassList, Dataset, FileRecord, ImageSet, Split, build, by_name, clean_class_names
from .folder import SPLITS, folders_in, require_folder
from .images import ImageArrays


class _PickledNumpy:
    """Arguments and state of a pickled NumPy object, recorded instead of building the object."""

    def __init__(self, *arguments: object):
        self.arguments = arguments
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Replacement for `_codecs.encode`, with which Python 3 pickles bytes in old protocols."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("contains text in an unexpected encoding")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Unpickler that calls only the replacements above."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") | ("numpy", "ndarray" | "dtype"):
                return _PickledNumpy
            case "_codecs", "encode":
                return _encode
        raise pickle.UnpicklingError(f"calls {module}.{name}, which a file of images does not need")


def _unpickle(content: bytes) -> dict[str, Any]:
    """Unpickle a dict of lists, numbers, bytes and arrays of bytes; anything else raises ValueError."""
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        return {
            key.decode("latin1") if isinstance(key, bytes) else str(key): _array(value) for key, value in batch.items()
        }
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(str(error) or type(error).__name__) from error


def _array(value: Any) -> Any:
    """Build the array of bytes from a recorded one; return other values unchanged."""
    if not isinstance(value, _PickledNumpy):
        return value
    _, shape, dtype, is_fortran, data = value.state
    if dtype.arguments[0] not in ("u1", b"u1") or not isinstance(data, bytes):
        raise ValueError("has an array that is not of bytes")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if is_fortran else "C")


_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _CifarFormat:
    """A published format of CIFAR: its folder, files and the number of images in each."""

    folder: str
    train: Sequence[str]
    test: Sequence[str]
    labels: str | int  # key of the labels in a pickle, or number of label bytes before the pixels; the last is used
    sizes: tuple[int, int]  # images in each file of train and test


_BATCHES = [f"data_batch_{number}" for number in range(1, 6)]
_BINARY_BATCHES = [f"{name}.bin" for name in _BATCHES]
_CIFAR_FORMATS = {
    "cifar10": (
        _CifarFormat("cifar-10-batches-py", _BATCHES, ["test_batch"], "labels", (10000, 10000)),
        _CifarFormat("cifar-10-batches-bin", _BINARY_BATCHES, ["test_batch.bin"], 1, (10000, 10000)),
    ),
    "cifar100": (
        _CifarFormat("cifar-100-python", ["train"], ["test"], "fine_labels", (50000, 10000)),
        _CifarFormat("cifar-100-binary", ["train.bin"], ["test.bin"], 2, (50000, 10000)),
    ),
}
_CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
_CIFAR100_CLASSES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man
    maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
    plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail
    snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
    tulip turtle wardrobe whale willow_tree wolf woman worm
""".split()


def read_cifar(data: Data) -> Dataset:
    """Read CIFAR-10, or CIFAR-100 with its fine labels, in the first format whose files are in the folder."""
    name, formats = data.source, _CIFAR_FORMATS[data.source]
    classes = _CIFAR10_CLASSES if name == "cifar10" else _CIFAR100_CLASSES
    root = require_folder(data.path, name)
    for form in formats:
        for folder in (root, root / form.folder):
            missing = [file for file in (*form.train, *form.test) if not (folder / file).is_file()]
            if len(missing) == len(form.train) + len(form.test):
                continue
            if missing:
                raise DataError(f"{folder}: contains no {', no '.join(missing)}; fetch all files of {name} again")
            splits = ((form.train, form.sizes[0]), (form.test, form.sizes[1]))
            train, test = (_cifar_images(folder, files, size, form, len(classes)) for files, size in splits)
            return Dataset(name, clean_class_names(classes, name), "a photo of a {}.", train, test)
    folders = " or ".join(form.folder for form in formats)
    raise DataError(f"{root}: contains no {folders}; download it with: fedcopl data get {name} {root}")


def _cifar_images(folder: Path, files: Sequence[str], size: int, form: _CifarFormat, classes: int) -> ImageSet:
    batches = []
    for name in files:
        file = folder / name
        pixels, labels = _cifar_batch(file, form, size)
        if len(pixels) != size or labels.shape != (size,):
            raise DataError(f"{file}: should have {counted(size, 'image')}, but has {len(pixels):,}; fetch it again")
        if not 0 <= labels.min() <= labels.max() < classes:
            raise DataError(
                f"{file}: has labels from {labels.min()} to {labels.max()}, but there are {classes} classes"
            )
        batches.append((pixels, labels))
    by_channel = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32)
    names = [f"{file}/{number}" for file in files for number in range(size)]
    images = ImageArrays(np.ascontiguousarray(by_channel.transpose(0, 2, 3, 1)))
    return ImageSet(images, np.concatenate([labels for _, labels in batches]), names)


def _cifar_batch(file: Path, form: _CifarFormat, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the pixels, (n, 3072), and the labels of one file."""
    try:
        content = file.read_bytes()
        if isinstance(form.labels, str):
            batch = _unpickle(content)
            return np.asarray(batch["data"], np.uint8).reshape(-1, _PIXELS), np.array(batch[form.labels], np.int64)
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{file}: is not one of CIFAR's pickles: {error}; fetch it again") from error
    row = form.labels + _PIXELS
    if len(content) != size * row:
        raise DataError(f"{file}: should be {size * row:,} bytes long, not {len(content):,}; fetch it again")
    rows = np.frombuffer(content, np.uint8).reshape(size, row)
    return rows[:, form.labels :], rows[:, form.labels - 1].astype(np.int64)


@dataclass(frozen=True)
class _Layout:
    """The layout of a data set of image files, with list files that assign them to classes and splits."""

    read: Callable[[Path], tuple[list[FileRecord], Sequence[str] | None]]  # its folder -> images, classes if listed
    marker: str  # a file or folder by which the data set's folder is recognised
    folders: Sequence[str]  # published names of the folder
    sizes: tuple[int, int, int]  # numbers of classes, training images and test images


def read_dataset_with_lists(data: Data) -> Dataset:
    """Read image files whose classes and splits are in folders and list files: DTD, RESISC45, CUB-200-2011, UCF101."""
    name, layout = data.source, _LAYOUTS[data.source]
    path = require_folder(data.path, name)
    candidates = [path, *(path / folder for folder in layout.folders)]
    root = next((folder for folder in candidates if (folder / layout.marker).exists()), None)
    if root is None:
        folders = " or ".join(layout.folders)
        raise DataError(f"{path}: is not the folder of {name}: there is no {layout.marker} in it or in {folders}")
    records, classes = layout.read(root)
    names = classes or sorted({record.label or "" for record in records}, key=by_name)
    missing = [record.path for record in records if not record.path.is_file()]
    if missing:
        raise DataError(f"{root}: {len(missing):,} of {len(records):,} images are missing, the first: {missing[0]}")
    train = sum(record.split == "train" for record in records)
    sizes = (len(names), train, len(records) - train)
    if sizes != layout.sizes:
        published, actual = (
            f"{train:,} train and {counted(test, 'test image')} in {count} classes"
            for count, train, test in (layout.sizes, sizes)
        )
        raise DataError(f"{root}: {name} has {published}; found {actual}. For a part of it use data.source=folder")
    return build(name, root, records, class_list=ClassList(names, root))


def _read_dtd(root: Path) -> tuple[list[FileRecord], None]:
    """Read split 1; the images of its lists train and val are the training images, 80 of each class."""
    lists: tuple[tuple[Split, str], ...] = (("train", "train1"), ("train", "val1"), ("test", "test1"))
    return [
        FileRecord(line, root / "images" / line, split, line.split("/")[0])
        for split, name in lists
        for line in _lines(root / "labels" / f"{name}.txt")
    ], None


def _read_resisc45(root: Path) -> tuple[list[FileRecord], None]:
    """Read class folders, split by the lists {train,val,test}.json or .txt if they exist; val counts as train.

    The authors of the data set use a fifth of each class for training, but publish no lists. Without lists, the
    training images are the fifth whose names have the smallest digests, which is equal on all machines.
    """
    split_of: dict[str, Split] = dict.fromkeys(_resisc_list(root, "train") + _resisc_list(root, "val"), "train")
    split_of.update(dict.fromkeys(_resisc_list(root, "test"), "test"))
    for folder in () if split_of else sorted(folder.name for folder in folders_in(root)):
        names = [f"{folder}/{path.name}" for path in (root / folder).glob("*.jpg")]
        names.sort(key=lambda name: (blake2b(name.encode(), digest_size=8).hexdigest(), name))
        train = len(names) // 5
        split_of.update(dict.fromkeys(names[:train], "train"))
        split_of.update(dict.fromkeys(names[train:], "test"))
    return [FileRecord(name, root / name, split, name.split("/")[0]) for name, split in split_of.items()], None


def _resisc_list(root: Path, split: str) -> list[str]:
    """Read the image names of one split as `class/file`; ELEVATER's JSON lists prefix them with `train.zip@`."""
    if (file := root / f"{split}.json").is_file():
        try:
            names = [str(image["file_name"]).split("@")[-1] for image in _json(file)["images"]]
        except (KeyError, TypeError) as error:
            raise DataError(f"{file}: is not a list of images: {error!r}") from error
    elif (file := root / f"{split}.txt").is_file():
        names = [line.split()[0] for line in _lines(file)]
    else:
        return []
    return [name if "/" in name else re.sub(r"_\d+\.\w+$", "", name) + f"/{name}" for name in names]


def _read_cub200(root: Path) -> tuple[list[FileRecord], list[str]]:
    """Read CUB-200-2011; numbers are removed from class names: `001.Laysan_Albatross` becomes `Laysan_Albatross`."""
    training_flags = dict(_pairs(root / "train_test_split.txt"))
    classes = {number: re.sub(r"^\d+\.", "", name) for number, name in _pairs(root / "classes.txt")}
    class_of = dict(_pairs(root / "image_class_labels.txt"))
    records = []
    for number, name in _pairs(root / "images.txt"):
        if number not in training_flags or class_of.get(number) not in classes:
            raise DataError(f"{root}: image {number} of images.txt is not in the other lists; fetch the data set again")
        split: Split = "train" if training_flags[number] == "1" else "test"
        records.append(FileRecord(name, root / "images" / name, split, classes[class_of[number]]))
    return records, list(classes.values())


def _read_ucf101(root: Path) -> tuple[list[FileRecord], list[str]]:
    """Read the middle frame of each video, split as in CoOp; its validation images are not used."""
    file, frames = root / "split_zhou_UCF101.json", root / "UCF-101-midframes"
    names: dict[int, str] = {}
    records = []
    try:
        split_lists = _json(file)
        for split in SPLITS:
            for path, label, action in split_lists[split]:
                # `BasketballDunk` becomes `Basketball_Dunk`, as in CoOp's files.
                words = [action] if "_" in action else re.findall("[A-Z][^A-Z]*", action) or [action]
                names[int(label)] = "_".join(words)
                records.append(FileRecord(str(path), frames / str(path), split, names[int(label)]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: is not CoOp's split of UCF101: {error!r}") from error
    return records, [names[label] for label in sorted(names)]


def _lines(file: Path) -> list[str]:
    try:
        return [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from error


def _pairs(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the first word and the rest of each line."""
    for line in _lines(file):
        first, _, rest = line.partition(" ")
        yield first, rest.strip()


def _json(file: Path) -> Any:
    try:
        return parse_json(read_limited(file))
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read as JSON: {error}") from error


_LAYOUTS = {
    "dtd": _Layout(_read_dtd, "labels/train1.txt", ["dtd"], (47, 3760, 1880)),
    "resisc45": _Layout(_read_resisc45, "airplane", ["NWPU-RESISC45", "RESICS45", "resisc45"], (45, 6300, 25200)),
    "cub200": _Layout(_read_cub200, "train_test_split.txt", ["CUB_200_2011"], (200, 5994, 5794)),
    "ucf101": _Layout(_read_ucf101, "split_zhou_UCF101.json", ["ucf101"], (101, 7639, 3783)),
}
