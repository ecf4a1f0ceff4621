"""DTD, RESISC45, CUB-200-2011 and UCF101 from their published folders, with their sizes checked."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..config import Data
from ..errors import DataError
from ..files import parse_json, read_limited
from ..plurals import counted
from .dataset import Dataset, FileRecord, ListedClasses, Split, build, by_name
from .folder import folders_in, require_folder


@dataclass(frozen=True)
class Sizes:
    """Official numbers of classes and images."""

    classes: int
    train: int
    test: int


DTD = Sizes(47, 3760, 1880)
RESISC45 = Sizes(45, 6300, 25200)
CUB200 = Sizes(200, 5994, 5794)
UCF101 = Sizes(101, 7639, 3783)
RESISC45_TRAIN_SHARE = 5  # one fifth: 140 of the 700 images of each class, as its authors do


def read_dtd(data: Data, sizes: Sizes = DTD) -> Dataset:
    """Read split 1; its train and val lists are the training images, 80 of each class."""
    root = _locate(data.path, "dtd", "labels/train1.txt", ("dtd",))
    lists: tuple[tuple[Split, str], ...] = (("train", "train1"), ("train", "val1"), ("test", "test1"))
    records = [
        _listed(root / "images", line, split, line.split("/")[0])
        for split, name in lists
        for line in _lines(root / "labels" / f"{name}.txt")
    ]
    return _checked("dtd", root, records, sizes)


def read_resisc45(data: Data, sizes: Sizes = RESISC45) -> Dataset:
    """Read class folders, split by the lists {train,val,test}.json or .txt if present; val counts as train.

    Its authors use a fifth for training and publish no lists. Without lists, we take the fifth of each class whose
    names have the smallest digests, the same on every machine.
    """
    root = _locate(data.path, "resisc45", "airplane", ("NWPU-RESISC45", "RESICS45", "resisc45"))
    folders = {folder.name for folder in folders_in(root)}
    listed = [
        _listed(root, name, "test" if split == "test" else "train", _resisc_class(name))
        for split in ("train", "val", "test")
        for name in _resisc_list(root, split)
    ]
    records = listed or [record for folder in sorted(folders) for record in _resisc_split(root, folder)]
    return _checked("resisc45", root, records, sizes)


def read_cub200(data: Data, sizes: Sizes = CUB200) -> Dataset:
    root = _locate(data.path, "cub200", "train_test_split.txt", ("CUB_200_2011",))
    for_training = dict(_pairs(root / "train_test_split.txt"))
    classes = dict(_pairs(root / "classes.txt"))
    class_of = dict(_pairs(root / "image_class_labels.txt"))
    records = []
    for number, name in _pairs(root / "images.txt"):
        if number not in for_training or class_of.get(number) not in classes:
            raise DataError(f"{root}: image {number} of images.txt is not in the other lists; fetch the data set again")
        split: Split = "train" if for_training[number] == "1" else "test"
        records.append(_listed(root / "images", name, split, _cub_name(classes[class_of[number]])))
    return _checked("cub200", root, records, sizes, [_cub_name(name) for name in classes.values()])


def read_ucf101(data: Data, sizes: Sizes = UCF101) -> Dataset:
    """Read the middle frame of each video, split as in CoOp; its validation images are not used."""
    root = _locate(data.path, "ucf101", "split_zhou_UCF101.json", ("ucf101",))
    split_file = root / "split_zhou_UCF101.json"
    splits: tuple[Split, ...] = ("train", "test")
    try:
        listed = _json(split_file)
        rows = [
            (split, str(name), int(label), str(action)) for split in splits for name, label, action in listed[split]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{split_file}: is not CoOp's split of UCF101: {error!r}") from error
    names = {label: _ucf_name(action) for _, _, label, action in rows}
    frames = root / "UCF-101-midframes"
    records = [_listed(frames, name, split, names[label]) for split, name, label, _ in rows]
    return _checked("ucf101", root, records, sizes, [names[label] for label in sorted(names)])


def _cub_name(name: str) -> str:
    """`001.Black_footed_Albatross` -> `Black_footed_Albatross`."""
    return re.sub(r"^\d+\.", "", name)


def _ucf_name(action: str) -> str:
    """`BasketballDunk` -> `Basketball_Dunk`, as in CoOp's files."""
    return action if "_" in action else "_".join(re.findall("[A-Z][^A-Z]*", action)) or action


def _resisc_class(name: str) -> str:
    """`airplane/airplane_001.jpg` or `airplane_001.jpg` -> `airplane`."""
    return name.split("/")[0] if "/" in name else re.sub(r"_\d+\.\w+$", "", name)


def _resisc_list(root: Path, split: str) -> list[str]:
    """Read the image names of one split; ELEVATER's JSON lists prefix them with `train.zip@`."""
    if (file := root / f"{split}.json").is_file():
        try:
            names = [str(image["file_name"]).split("@")[-1] for image in _json(file)["images"]]
        except (KeyError, TypeError) as error:
            raise DataError(f"{file}: is not a list of images: {error!r}") from error
    elif (file := root / f"{split}.txt").is_file():
        names = [line.split()[0] for line in _lines(file)]
    else:
        return []
    return [name if "/" in name else f"{_resisc_class(name)}/{name}" for name in names]


def _resisc_split(root: Path, folder: str) -> list[FileRecord]:
    names = [f"{folder}/{path.name}" for path in (root / folder).glob("*.jpg")]
    names.sort(key=lambda name: (blake2b(name.encode(), digest_size=8).hexdigest(), name))
    train = len(names) // RESISC45_TRAIN_SHARE
    return [_listed(root, name, "train" if number < train else "test", folder) for number, name in enumerate(names)]


def _locate(path: str, source: str, token: str, below: Sequence[str]) -> Path:
    """Find the folder that contains `token`: the given one, or one of its official sub-folders."""
    root = require_folder(path, source)
    for folder in (root, *(root / name for name in below)):
        if (folder / token).exists():
            return folder
    raise DataError(
        f"{root}: this is not the folder of {source}: it has no {token}, nor has {' or '.join(below)} in it"
    )


def _listed(folder: Path, name: str, split: Split, label: str) -> FileRecord:
    return FileRecord(name, folder / name, split, label)


def _lines(file: Path) -> list[str]:
    try:
        return [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from error


def _pairs(file: Path) -> Iterable[tuple[str, str]]:
    for line in _lines(file):
        first, _, rest = line.partition(" ")
        yield first, rest.strip()


def _json(file: Path) -> Any:
    try:
        return parse_json(read_limited(file))
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read as JSON: {error}") from error


def _checked(
    name: str, root: Path, records: Sequence[FileRecord], sizes: Sizes, classes: Sequence[str] | None = None
) -> Dataset:
    """Build the data set if all images exist and the numbers are the official ones."""
    names = classes or sorted({record.label or "" for record in records}, key=by_name)
    missing = [record.path for record in records if not record.path.is_file()]
    if missing:
        raise DataError(f"{root}: {len(missing):,} of {len(records):,} images are missing, the first: {missing[0]}")
    train = sum(record.split == "train" for record in records)
    found = Sizes(len(names), train, len(records) - train)
    if found != sizes:
        raise DataError(
            f"{root}: {name} has {_in_words(sizes)}; found {_in_words(found)}. For a part of it use source=folder"
        )
    return build(name, root, records, listed=ListedClasses(names, root))


def _in_words(sizes: Sizes) -> str:
    return f"{sizes.train:,} train and {counted(sizes.test, 'test image')} in {sizes.classes} classes"
