"""The model card: a README.md that tells people what an exported classifier is, in the form Hugging Face uses."""

import json
from collections.abc import Collection, Iterator, Mapping
from textwrap import fill
from typing import Any

from ..clip.formats.hub import RELEASES
from .onnx_export import Difference
from .recipe import ARRAYS, Recipe

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


def _training(told: Mapping[str, Any]) -> Iterator[str]:
    if told:
        yield "## How it was trained"
        yield "\n".join(
            ["| | |", "|---|---|", *(f"| {quoted(name)} | {quoted(value)} |" for name, value in told.items())]
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
