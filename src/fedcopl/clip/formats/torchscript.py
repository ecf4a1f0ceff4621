"""Reading the weights out of a TorchScript archive without loading the program beside them.

`torch.jit.load` compiles the archive's code and runs the `__setstate__` methods that it finds there: a
hostile file could do harm. Here only the pickled tree of modules is read, by an unpickler that knows tensors
and plain containers, and turns every class of the archive into an empty box.
"""

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

STORAGES = {
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "BoolStorage": torch.bool,
}


class Box:
    """Stands for an object of the archive's own classes: holds its attributes, does nothing."""

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {}


def is_torchscript(file: Path) -> bool:
    """TorchScript's zip archives have a pickle of constants; those of `torch.save` do not."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def read_torchscript(file: Path) -> dict[str, Tensor]:
    with zipfile.ZipFile(file) as archive:
        root = next(name for name in archive.namelist() if name.endswith("/data.pkl")).removesuffix("data.pkl")
        with archive.open(f"{root}data.pkl") as tree:
            return dict(_tensors(_Reader(tree, archive, root).load(), "", set()))


def _tensors(value: Any, name: str, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor under its dotted name. A box is opened once: a file may make boxes contain each other."""
    if torch.is_tensor(value):
        yield name, value
    elif isinstance(value, Box) and id(value) not in seen:
        seen.add(id(value))
        for child, inner in value.__dict__.get("attributes", {}).items():
            yield from _tensors(inner, f"{name}.{child}" if name else str(child), seen)


class _Reader(pickle.Unpickler):
    """An unpickler that can make tensors, boxes and plain containers, and nothing else."""

    def __init__(self, tree: Any, archive: zipfile.ZipFile, root: str):
        super().__init__(tree)
        self.archive, self.root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
            ("torch.jit._pickle", "restore_type_tag"): _untagged,
            ("collections", "OrderedDict"): OrderedDict,
        }
        if (module, name) in known:
            return known[module, name]
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if module.split(".")[0] == "__torch__":
            return Box
        if module == "torch.jit._pickle" and name.startswith("build_"):
            return _untagged
        raise pickle.UnpicklingError(f"asks for {module}.{name}, which no CLIP needs")

    def persistent_load(self, key: Any) -> Tensor:
        """A storage, as one row of numbers."""
        _, kind, record, *_ = key
        entry = self.archive.getinfo(f"{self.root}data/{record}")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise pickle.UnpicklingError(f"{entry.filename} is compressed, which torch never does")
        # Copied into torch's own memory: the last bits of a product may depend on how its factors are aligned.
        return torch.frombuffer(bytearray(self.archive.read(entry)), dtype=kind).clone()


def _rebuild(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    return storage.as_strided(size, stride, offset)


def _untagged(value: Any, *_: Any) -> Any:
    """Typed lists and dictionaries as plain ones."""
    return value
