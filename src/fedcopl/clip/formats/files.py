"""Safe reading of a checkpoint's files, without running code in them.

`torch.jit.load` compiles a TorchScript archive's code and runs its `__setstate__` methods. Here only the tree of
modules is read, by an unpickler that knows tensors and plain containers and replaces every class by an empty object.
"""

import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor

from ...errors import ModelError
from ...files import parse_json, read_limited

_WholeOrFloat = TypeVar("_WholeOrFloat", int, float)


@dataclass(frozen=True)
class Weights:
    """Named tensors, and their file for error messages."""

    file: Path
    tensors: Mapping[str, Tensor]

    def get(self, name: str) -> Tensor:
        """Return a tensor; raises ModelError if it is missing."""
        if name not in self.tensors:
            raise ModelError(f"{self.file}: lacks the weight {name}")
        return self.tensors[name]

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Return the shape of a tensor; raises ModelError unless it has this number of dimensions."""
        shape = tuple(self.get(name).shape)
        if len(shape) != dimensions:
            raise ModelError(f"{self.file}: {name} has the shape {shape}; {dimensions} dimensions are needed")
        return shape

    def table(self, name: str) -> tuple[int, int]:
        """Return rows and columns of a weight that may be stored as a batch of one."""
        shape = tuple(self.get(name).shape)
        *batch, rows, columns = shape if len(shape) > 1 else (0, *shape)
        if len(shape) < 2 or any(size != 1 for size in batch):
            raise ModelError(f"{self.file}: {name} has the shape {shape}; 2 dimensions are needed")
        return rows, columns


def read_json(file: Path) -> dict[str, Any]:
    """Read a config of a model; raises ModelError unless it is a JSON object."""
    try:
        content = parse_json(read_limited(file))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: holds a {type(content).__name__}, not a JSON object")
    return content


def positive(kind: type[_WholeOrFloat], value: Any, name: str, file: Path) -> _WholeOrFloat:
    """Validate a setting that must be a number above zero."""
    if isinstance(value, bool) or not isinstance(value, kind) or not value > 0:
        raise ModelError(f"{file}: {name} must be a number above zero, not {value!r}")
    return value


def read_weights(file: Path) -> Weights:
    """Read the tensors of one file by its suffix; memory-mapped where the format allows."""
    readers: dict[str, Callable[[Path], Mapping[str, Tensor]]] = {
        ".safetensors": _read_safetensors,
        ".json": _read_shards,
        ".bin": _read_pickle,
        ".pt": _read_pickle,
        ".pth": _read_pickle,
    }
    if file.suffix not in readers:
        raise ModelError(f"{file}: ends in none of {', '.join(readers)}, so its format is unknown")
    try:
        return Weights(file, readers[file.suffix](file))
    except ModelError:
        raise
    except Exception as error:  # of parsers, on a damaged or hostile file
        raise ModelError(f"{file}: is damaged or not a weights file ({first_sentence(error)})") from error


def first_sentence(error: Exception) -> str:
    """Return the first sentence of a library's error message."""
    return re.split(r"\. |\n", str(error).strip())[0].rstrip(".") or type(error).__name__


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, it is no dict


def _read_shards(index: Path) -> dict[str, Tensor]:
    """Read the files of an index, which are in its folder."""
    shard_of: dict[str, str] = read_json(index)["weight_map"]
    shards = {name: read_weights(index.parent / Path(name).name) for name in sorted(set(shard_of.values()))}
    return {tensor: shards[shard].get(tensor) for tensor, shard in shard_of.items()}


def _read_pickle(file: Path) -> dict[str, Tensor]:
    if _is_torchscript(file):
        return _read_torchscript(file)
    loaded = _load_pickle(file)
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]  # a training checkpoint of open_clip's
    if not isinstance(loaded, dict):
        raise ModelError(f"{file}: holds a {type(loaded).__name__}, not a state dict")
    return {str(name).removeprefix("module."): tensor for name, tensor in loaded.items() if torch.is_tensor(tensor)}


def _load_pickle(file: Path) -> Any:
    try:  # only torch's newer format, a zip archive, can be mapped
        return torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError as error:  # torch's message explains how to run the file anyway
        match = re.search(r"GLOBAL ([\w.]+)", str(error))
        content = f"calls {match[1]}" if match else "is no pickle of tensors"
        raise ModelError(
            f"{file}: holds more than weights ({content}): it is not opened, because it could run code"
        ) from error


_STORAGES = {
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "BoolStorage": torch.bool,
}


class _Box:
    """Stand-in for objects of the archive's own classes; only holds attributes."""

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {}


def _is_torchscript(file: Path) -> bool:
    """Detect TorchScript archives: only they contain a pickle of constants."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _read_torchscript(file: Path) -> dict[str, Tensor]:
    with zipfile.ZipFile(file) as archive:
        root = next(name for name in archive.namelist() if name.endswith("/data.pkl")).removesuffix("data.pkl")
        with archive.open(f"{root}data.pkl") as tree:
            return dict(_tensors(_Reader(tree, archive, root).load(), "", set()))


def _tensors(value: Any, name: str, visited: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor with its dotted name; containers may be nested, so each is visited once."""
    if torch.is_tensor(value):
        yield name, value
    elif isinstance(value, _Box) and id(value) not in visited:
        visited.add(id(value))
        for child, inner in value.__dict__.get("attributes", {}).items():
            yield from _tensors(inner, f"{name}.{child}" if name else str(child), visited)


class _Reader(pickle.Unpickler):
    """Unpickler of tensors, boxes and plain containers only."""

    def __init__(self, tree: Any, archive: zipfile.ZipFile, root: str):
        super().__init__(tree)
        self.archive, self.root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        rebuilders: dict[tuple[str, str], Callable[..., Any]] = {
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
            ("torch.jit._pickle", "restore_type_tag"): _untagged,
            ("collections", "OrderedDict"): OrderedDict,
        }
        if (module, name) in rebuilders:
            return rebuilders[module, name]
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if module.split(".")[0] == "__torch__":
            return _Box
        if module == "torch.jit._pickle" and name.startswith("build_"):
            return _untagged
        raise pickle.UnpicklingError(f"calls {module}.{name}, which a CLIP checkpoint does not need")

    def persistent_load(self, key: Any) -> Tensor:
        """Return a storage as a flat tensor."""
        _, kind, record, *_ = key
        entry = self.archive.getinfo(f"{self.root}data/{record}")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise pickle.UnpicklingError(f"{entry.filename} is compressed, which torch never does")
        # Copied into torch's memory: the last bits of a product may depend on alignment.
        return torch.frombuffer(bytearray(self.archive.read(entry)), dtype=kind).clone()


def _rebuild(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    return storage.as_strided(size, stride, offset)


def _untagged(value: Any, *_: Any) -> Any:
    """Return typed lists and dictionaries as plain ones."""
    return value
