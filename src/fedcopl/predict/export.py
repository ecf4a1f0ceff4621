"""Writing a classifier into a folder that others can use: whole, or not at all."""

import json
import shutil
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from ..clip.formats.hub import locate
from ..clip.formats.hugging_face import WEIGHT_FILES
from ..clip.formats.openai import OPEN_CLIP_WEIGHTS
from ..errors import RunFolderError
from ..files import write_bytes, write_text
from .classifier import Classifier
from .model_card import ONNX_EXAMPLE, ONNX_FILE, write_card
from .onnx_export import Difference, export_onnx
from .recipe import ARRAYS, BACKBONE, CONFIG

DESCRIBING = (".json", ".txt")  # files beside the weights: settings, vocabulary


@dataclass(frozen=True)
class Exported:
    """What was written, and how far the ONNX file is from torch, if there is one."""

    folder: Path
    onnx: Difference | None


def export(classifier: Classifier, folder: Path, *, onnx: bool = False, with_backbone: bool = False) -> Exported:
    """Everything goes into a temporary folder, which gets its name when it is complete."""
    refuse_taken(folder)
    part = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        difference = _write(classifier, part, onnx, with_backbone)
        if folder.exists():  # refuse_taken has seen that it is empty
            folder.rmdir()
        part.rename(folder)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Exported(folder, difference)


def refuse_taken(folder: Path) -> None:
    """Nothing is ever overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder}: is there already; choose another name")


def _write(classifier: Classifier, part: Path, onnx: bool, with_backbone: bool) -> Difference | None:
    recipe, predictor = classifier.recipe, classifier.predictor
    recipe = replace(recipe, backbone=replace(recipe.backbone, included=with_backbone))
    difference = export_onnx(predictor, recipe.classes, part / ONNX_FILE) if onnx else None
    arrays = {name: np.ascontiguousarray(array) for name, array in predictor.prompts.items()}
    write_bytes(part / ARRAYS, save(arrays, {"format": "np"}))
    write_text(part / CONFIG, recipe.to_json())
    write_text(part / "README.md", write_card(recipe, arrays, difference))
    if onnx:
        example = files(__package__).joinpath("onnx_example.txt").read_text(encoding="utf-8")
        write_text(part / ONNX_EXAMPLE, example)
    if with_backbone:
        copy_backbone(locate(predictor.model.encoder.clip.name), part / BACKBONE)
    return difference


def copy_backbone(source: Path, target: Path) -> None:
    """The files that loading the model reads, and no others that may lie beside them."""
    target.mkdir(parents=True)
    for file in [source] if source.is_file() else _needed(source):
        shutil.copyfile(file, target / file.name)


def _needed(folder: Path) -> list[Path]:
    described = [file for file in sorted(folder.iterdir()) if file.suffix in DESCRIBING and file.is_file()]
    [weights, *_] = [folder / name for name in (*WEIGHT_FILES, *OPEN_CLIP_WEIGHTS) if (folder / name).is_file()]
    if weights.suffix != ".json":
        return [*(file for file in described if not file.name.endswith(".index.json")), weights]
    shards = set(json.loads(weights.read_text(encoding="utf-8"))["weight_map"].values())
    return [*described, *(folder / Path(name).name for name in sorted(shards))]
