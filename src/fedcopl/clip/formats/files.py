"""Reading checkpoint files without running the code in them.

`torch.jit.load` compiles the code of a TorchScript archive and runs its `__setstate__` methods. Here only the tree of
modules is read, by an unpickler that builds tensors and plain containers and replaces every class by an empty object.
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
from safetensors.torch import load_file
from torch import Tensor

from ...errors import ModelError
from ...files import parse_json, read_limited

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class Weights:
    """Tensors by name, and their file for error messages."""

    file: Path
    tensors: Mapping[str, Tensor]

    def get(self, name: str) -> Tensor:
        """Return a tensor; raises ModelError if it is missing."""
        if name not in self.tensors:
            raise ModelError(f"{self.file}: the weight {name} is missing")
        return self.tensors[name]

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Return the shape of a tensor; raises ModelError for another number of dimensions."""
        shape = tuple(self.get(name).shape)
        if len(shape) != dimensions:
            raise ModelError(f"{self.file}: {name} has the shape {shape}; it must have {dimensions} dimensions")
        return shape

    def matrix_shape(self, name: str) -> tuple[int, int]:
        """Return rows and columns of a matrix, which may have leading dimensions of size 1."""
        shape = tuple(self.get(name).shape)
        if len(shape) < 2 or set(shape[:-2]) - {1}:
            raise ModelError(f"{self.file}: {name} has the shape {shape}; it must have 2 dimensions")
        return shape[-2], shape[-1]


def read_json(file: Path) -> dict[str, Any]:
    """Read the config of a model; raises ModelError unless it is a JSON object."""
    try:
        content = parse_json(read_limited(file))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: contains a {type(content).__name__}, not a JSON object")
    return content


def positive(kind: type[_Number], value: Any, name: str, file: Path) -> _Number:
    """Return a setting of a config; raises ModelError unless it is a positive number."""
    if isinstance(value, bool) or not isinstance(value, kind) or not value > 0:
        raise ModelError(f"{file}: {name} must be a positive number, not {value!r}")
    return value


def read_weights(file: Path) -> Weights:
    """Read the tensors of a file in the format of its extension; memory-mapped where the format allows."""
    readers: dict[str, Callable[[Path], Mapping[str, Tensor]]] = {
        ".safetensors": load_file,
        ".json": _read_shards,
        ".bin": _read_pickle,
        ".pt": _read_pickle,
        ".pth": _read_pickle,
    }
    if file.suffix not in readers:
        raise ModelError(f"{file}: the extension of a weights file must be one of {', '.join(readers)}")
    try:
        return Weights(file, readers[file.suffix](file))
    except ModelError:
        raise
    except Exception as error:  # a parser may raise any error for a damaged or malicious file
        raise ModelError(f"{file}: is damaged or not a weights file ({first_sentence(error)})") from error


def first_sentence(error: Exception) -> str:
    """Return the first sentence of an error message of another library."""
    return re.split(r"\. |\n", str(error).strip())[0].rstrip(".") or type(error).__name__


def _read_shards(index: Path) -> dict[str, Tensor]:
    """Read the tensors of the files that an index lists; the files must be in its folder."""
    shard_of: dict[str, str] = read_json(index)["weight_map"]
    shards = {name: read_weights(index.parent / Path(name).name) for name in sorted(set(shard_of.values()))}
    return {tensor: shards[shard].get(tensor) for tensor, shard in shard_of.items()}


def _read_pickle(file: Path) -> dict[str, Tensor]:
    if _is_torchscript(file):
        return _read_torchscript(file)
    loaded = _load_pickle(file)
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]  # a training checkpoint of open_clip
    if not isinstance(loaded, dict):
        raise ModelError(f"{file}: contains a {type(loaded).__name__}, not a state dict")
    return {str(name).removeprefix("module."): tensor for name, tensor in loaded.items() if torch.is_tensor(tensor)}


def _load_pickle(file: Path) -> Any:
    try:  # only torch's newer format, a zip archive, can be memory-mapped
        return torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError as error:  # torch's message recommends to load the file unsafely
        match = re.search(r"GLOBAL ([\w.]+)", str(error))
        content = f"calls {match[1]}" if match else "is no pickle of tensors"
        raise ModelError(
            f"{file}: contains more than weights ({content}), and loading it could run code; convert it to safetensors"
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


class _ArchivedObject:
    """Replacement for an object of any class in the archive; it only has attributes."""

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {}


def _is_torchscript(file: Path) -> bool:
    """Return whether a file is a TorchScript archive: only these contain a pickle of constants."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _read_torchscript(file: Path) -> dict[str, Tensor]:
    with zipfile.ZipFile(file) as archive:
        root = next(name for name in archive.namelist() if name.endswith("/data.pkl")).removesuffix("data.pkl")
        with archive.open(f"{root}data.pkl") as tree:
            return dict(_named_tensors(_TorchScriptUnpickler(tree, archive, root).load(), "", set()))


def _named_tensors(value: Any, name: str, visited: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors with their dotted names; an object is visited once, because references may form a cycle."""
    if torch.is_tensor(value):
        yield name, value
    elif isinstance(value, _ArchivedObject) and id(value) not in visited:
        visited.add(id(value))
        for child, inner in value.__dict__.get("attributes", {}).items():
            yield from _named_tensors(inner, f"{name}.{child}" if name else str(child), visited)


class _TorchScriptUnpickler(pickle.Unpickler):
    """Unpickler that builds only tensors, plain containers and `_ArchivedObject`."""

    def __init__(self, tree: Any, archive: zipfile.ZipFile, root: str):
        super().__init__(tree)
        self.archive, self.root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        rebuilders: dict[tuple[str, str], Callable[..., Any]] = {
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
            ("torch.jit._pickle", "restore_type_tag"): _first_argument,
            ("collections", "OrderedDict"): OrderedDict,
        }
        if (module, name) in rebuilders:
            return rebuilders[module, name]
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if module.split(".")[0] == "__torch__":
            return _ArchivedObject
        if module == "torch.jit._pickle" and name.startswith("build_"):
            return _first_argument
        raise pickle.UnpicklingError(f"calls {module}.{name}, which a CLIP checkpoint does not need")

    def persistent_load(self, key: Any) -> Tensor:
        """Read a tensor's storage from the archive as a tensor of one dimension."""
        _, kind, record, *_ = key
        entry = self.archive.getinfo(f"{self.root}data/{record}")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise pickle.UnpicklingError(f"{entry.filename} is compressed, but torch stores tensors uncompressed")
        # Cloned into torch's memory, because the last bits of a matrix product may depend on alignment.
        return torch.frombuffer(bytearray(self.archive.read(entry)), dtype=kind).clone()


def _rebuild_tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    return storage.as_strided(size, stride, offset)


def _first_argument(value: Any, *_: Any) -> Any:
    """Return a list or dictionary without the type that TorchScript stores with it."""
    return value
