"""Writing a classifier into a folder that others can use: whole, or not at all; with a model card for people."""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from safetensors.numpy import save

from ..clip.formats.hub import RELEASES, locate
from ..clip.formats.hugging_face import WEIGHT_FILES
from ..clip.formats.openai import OPEN_CLIP_WEIGHTS
from ..errors import RunFolderError
from ..files import write_bytes, write_text
from .classifier import Classifier
from .onnx_export import Difference, export_onnx
from .recipe import ARRAYS, BACKBONE, CONFIG, Recipe

TAGS = ("federated-learning", "unsupervised", "clip", "prompt-tuning")
ONNX_FILE, ONNX_EXAMPLE = "classifier.onnx", "example_onnx.py"
USE = """\
```sh
pip install fedcopl
fedcopl predict --classifier THIS-FOLDER PHOTOS -o answers.csv
```

```python
from fedcopl import Classifier

classifier = Classifier.load("THIS-FOLDER")
classifier.predict(["photo.jpg"])
```"""


def write_card(recipe: Recipe, arrays: Collection[str], onnx: Difference | None) -> str:
    """The whole page. Names of classes and sites are shown as they are, and cannot be more than text."""
    client = recipe.about.get("client")
    parts = [
        _head(recipe),
        f"# Classifier of {quoted(client)}" if client else "# Classifier",
        fill(_what(recipe), 120),
        "The classes, in the order of the probabilities:",
        "\n".join(f"    {name}" for name in recipe.classes),
        "## How to use it",
        USE,
        "## When it abstains",
        fill(_abstaining(recipe), 120),
        *_training({**recipe.about.get("training", {}), **recipe.about.get("versions", {})}),
        "## What is in it",
        fill(_privacy(arrays), 120),
        fill(_backbone(recipe), 120),
        *_onnx(onnx),
    ]
    return "\n\n".join(parts) + "\n"


def _head(recipe: Recipe) -> str:
    """YAML for the hub; a value written as JSON is YAML that nobody can break out of."""
    release = RELEASES.get(recipe.backbone.name)
    lines = [
        "---",
        "library_name: fedcopl",
        "pipeline_tag: image-classification",
        f"tags: {json.dumps([*TAGS, recipe.config.method])}",
        *([f"base_model: {json.dumps(release.repository)}"] if release else []),
        "---",
    ]
    return "\n".join(lines)


def _what(recipe: Recipe) -> str:
    return (
        f"It tells {len(recipe.classes)} classes apart. Several sites trained it together without any label, by the "
        f"method `{recipe.config.method}` of fedcopl, on top of the frozen CLIP model {quoted(recipe.backbone.name)}. "
        + _how_good(recipe.about.get("accuracy"))
    )


def _how_good(accuracy: Mapping[str, Any] | None) -> str:
    if accuracy is None:
        return "The site has no labelled images, so **nobody has measured how often it is right**."
    return (
        f"On the site's own {accuracy['images']:,} labelled test images **{accuracy['final']:.1%}** of its answers are "
        f"right; of plain zero-shot CLIP's, {accuracy['zero_shot']:.1%}. Elsewhere it may do worse: it is made for one "
        "site."
    )


def _abstaining(recipe: Recipe) -> str:
    if recipe.confidence is None:
        return "It always answers: no threshold was measured."
    return (
        f"Below a probability of {recipe.threshold:.4f} it gives no answer. That is where {recipe.share:.0%} of the "
        f"{recipe.confidence.images:,} unlabelled images of its own site lie. It says how unusual an image is to the "
        "classifier, not how often it is wrong."
    )


def _training(facts: Mapping[str, Any]) -> Iterator[str]:
    if facts:
        yield "## How it was trained"
        yield "\n".join(
            ["| | |", "|---|---|", *(f"| {quoted(name)} | {quoted(value)} |" for name, value in facts.items())]
        )


def _privacy(arrays: Collection[str]) -> str:
    memory = "memory keys" in arrays
    return (
        "Prompts: arrays that were trained on the site's images. They hold no image, but nobody has proved that they "
        "tell nothing about the images: hand this folder on as you would any model that was trained on them. What is "
        "personal to the site never left it while it was trained; with this folder it does."
        + (f" **Features of some of the site's own images are in `{ARRAYS}`**: the method remembers them." * memory)
    )


def _backbone(recipe: Recipe) -> str:
    backbone = recipe.backbone
    where = "lies in `backbone/`" if backbone.included else "is not in this folder; it is found by its name"
    return f"The CLIP model {where}, and must have the fingerprint `{backbone.fingerprint}`."


def _onnx(difference: Difference | None) -> Iterator[str]:
    if difference is not None:
        yield "## ONNX"
        yield fill(
            f"`{ONNX_FILE}` is the whole of it, CLIP included: `pixels` (uint8, batch x 3 x side x side) in, `logits` "
            f"and `probabilities` out. On {difference.images} made-up pictures its logits differ from torch's by at "
            f"most {difference.logits:.1e}, its probabilities by {difference.probabilities:.1e}. "
            f"`python {ONNX_EXAMPLE} photo.jpg` uses it with onnxruntime, NumPy and Pillow alone.",
            120,
        )


def quoted(value: object) -> str:
    """As text in Markdown, whatever it is called."""
    text = " ".join(str(value).split())
    return "".join(f"&#{ord(sign)};" if sign in "\\`*_{}[]<>()#!|&~@=^$" else sign for sign in text)


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
