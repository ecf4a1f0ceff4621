"""Writing a classifier into a folder that others can use: whole, or not at all; with a model card for people."""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from ..clip.formats.hub import RELEASES, locate
from ..clip.formats.hugging_face import WEIGHT_FILES
from ..clip.formats.open_clip import OPEN_CLIP_WEIGHTS
from ..errors import RunFolderError
from ..files import check_output_folder, publish_bytes, publish_text
from ..plurals import counted
from ..run.folder import SITE_PRIOR
from .onnx_export import Difference, export_onnx
from .predict import Classifier, Predictor
from .prior import PRIOR, Prior
from .recipe import ARRAYS, BACKBONE, CONFIG, MIX, Recipe

TAGS = ("federated-learning", "unsupervised", "clip", "prompt-tuning")
ONNX_FILE, ONNX_EXAMPLE = "classifier.onnx", "example_onnx.py"
ONNX_PRIOR = """\
Its `logits` are logarithms of the probabilities. The mix of classes is the initializer `log_prior`, one logarithm of a
share for each class, and may be given beside the pixels:"""
ONNX_SETTING = """\
```python
log_prior = numpy.log(shares).astype("float32")  # as many as there are classes, in their order, none 0
session.run(["logits", "probabilities"], {"pixels": pixels, "log_prior": log_prior})
```"""
FOUND = "which nobody counted: it was found without a label, on the images of its site."
OTHER_MIX = " What is measured here, and below the threshold, was measured with the site's own mix of classes."
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


def write_card(recipe: Recipe, arrays: Collection[str], onnx: Difference | None, prior: Prior | None = None) -> str:
    """The whole page. Names of classes and sites are shown as they are, and cannot be more than text."""
    client = recipe.about.get("client")
    parts = [
        _head(recipe),
        f"# Classifier of {quoted(client)}" if client else "# Classifier",
        fill(_what(recipe), 120),
        "The classes, in the order of the probabilities:",
        "\n".join(f"    {name}" for name in recipe.classes),
        "## How to use it",
        USE if recipe.backbone.included or recipe.backbone.is_known else _use_with_backbone(),
        *_beforehand(recipe.classes, prior, recipe.about.get(MIX)),
        "## When it abstains",
        fill(_abstaining(recipe), 120),
        *_training({**recipe.about.get("training", {}), **recipe.about.get("versions", {})}),
        "## What is in it",
        fill(_privacy(arrays), 120),
        fill(_backbone(recipe), 120),
        *_onnx(onnx, prior),
    ]
    return "\n\n".join(parts) + "\n"


def _use_with_backbone() -> str:
    """Where the model is known by no name, whoever uses it says where it lies."""
    spoken = USE.replace(" -o answers.csv", " -o answers.csv --backbone MODEL")
    return spoken.replace('load("THIS-FOLDER")', 'load("THIS-FOLDER", backbone="MODEL")')


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
        f"It tells {counted(len(recipe.classes), 'class')} apart. "
        f"Several sites trained it together without any label, by the method "
        f"`{recipe.config.method}` of fedcopl, on top of the frozen CLIP model {quoted(recipe.backbone.name)}. "
        + _how_good(recipe.about.get("accuracy"))
        + (OTHER_MIX * (MIX in recipe.about))
    )


def _how_good(accuracy: Mapping[str, Any] | None) -> str:
    if accuracy is None:
        return "The site has no labelled images, so **nobody has measured how often it is right**."
    return (
        f"On the site's own {counted(accuracy['images'], 'labelled test image')} "
        f"**{accuracy['final']:.1%}** of its answers are right; "
        f"of plain zero-shot CLIP's, {accuracy['zero_shot']:.1%}. Elsewhere it may do worse: it is made for one "
        "site."
    )


def _beforehand(classes: Sequence[str], prior: Prior | None, whose: str | None) -> Iterator[str]:
    """The mix it answers for, and which part of an answer it is: elsewhere another one may be right."""
    if prior is None:
        return
    model, made = prior.model, prior.model.prototypes is not None
    looks = ", what images of each class look like over all sites" if made else ""
    yield "## What it knows beforehand"
    yield fill(
        "An answer is made of what the model sees in the image, how far the model leans towards some classes"
        f"{looks}, and **in what mix the classes occur where the image comes from**: "
        f"log p = {model.text_scale:g} log p(model)"
        + (f" - {model.feature_scale / 2:g} distance^2" if made else "")
        + " + logit bias + log(class prior), up to a number that makes it a probability. It answers for this mix, "
        + (f"**the one {quoted(whose)}**, not that of its site." if whose else FOUND),
        120,
    )
    width = max(map(len, classes))
    yield "\n".join(f"    {name:<{width}}  {share:7.2%}" for name, share in prior.named_class_prior(classes).items())
    yield fill(
        "Where images come in another mix, say so: `fedcopl predict --prior FILE` with a table `class,share`, "
        "`--prior images` to find it out from the images themselves, `--prior none` for the mix of all sites together; "
        'in Python `classifier.with_prior({"class": share, ...})`, `("images", images)` and `("none")`.',
        120,
    )


def _abstaining(recipe: Recipe) -> str:
    if recipe.confidence is None:
        return "It always answers: no threshold was measured."
    return (
        f"Below a probability of {recipe.threshold:.4f} it gives no answer. That is where {recipe.share:.0%} of the "
        f"{counted(recipe.confidence.images, 'unlabelled image')} of its own site lie. "
        "It says how unusual an image is to the classifier, not how often it is wrong."
    )


def _training(facts: Mapping[str, Any]) -> Iterator[str]:
    if facts:
        yield "## How it was trained"
        yield "\n".join(
            ["| | |", "|---|---|", *(f"| {quoted(name)} | {quoted(value)} |" for name, value in facts.items())]
        )


def _privacy(arrays: Collection[str]) -> str:
    memory, class_prior = "memory keys" in arrays, f"{PRIOR}{SITE_PRIOR}" in arrays
    return (
        "Prompts: arrays that were trained on the site's images. They hold no image, but nobody has proved that they "
        "tell nothing about the images: hand this folder on as you would any model that was trained on them. What is "
        "personal to the site never left it while it was trained; with this folder it does."
        + (" So do the mix of classes above and, summed over all sites, what the classes look like." * class_prior)
        + (f" **Features of some of the site's own images are in `{ARRAYS}`**: the method remembers them." * memory)
    )


def _backbone(recipe: Recipe) -> str:
    backbone = recipe.backbone
    if backbone.included:
        where = "lies in `backbone/`"
    elif backbone.is_known:
        where = "is not in this folder; it is found by its name"
    else:
        where = "is not in this folder and nobody's but its owner's: say where it lies with `--backbone`"
    return f"The CLIP model {where}. It must have the fingerprint `{backbone.fingerprint}`."


def _onnx(difference: Difference | None, prior: Prior | None) -> Iterator[str]:
    if difference is not None:
        yield "## ONNX"
        yield fill(
            f"`{ONNX_FILE}` is the whole of it, CLIP included: `pixels` (uint8, batch x 3 x side x side) in, `logits` "
            f"and `probabilities` out. On {difference.images} made-up pictures its logits differ from torch's by at "
            f"most {difference.logits:.1e}, its probabilities by {difference.probabilities:.1e}. "
            f"`python {ONNX_EXAMPLE} photo.jpg` uses it with onnxruntime, NumPy and Pillow alone.",
            120,
        )
        if prior is not None:
            yield f"{ONNX_PRIOR}\n\n{ONNX_SETTING}"


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
    check_output_folder(folder, new=True)
    part = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        difference = _write(classifier, part, onnx, with_backbone)
        if folder.exists():  # and is empty, as was checked
            folder.rmdir()
        part.rename(folder)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Exported(folder, difference)


def _write(classifier: Classifier, part: Path, onnx: bool, with_backbone: bool) -> Difference | None:
    recipe, predictor = classifier.recipe, classifier.predictor
    recipe = replace(recipe, backbone=replace(recipe.backbone, included=with_backbone))
    difference = export_onnx(predictor, recipe.classes, part / ONNX_FILE) if onnx else None
    arrays = _arrays(predictor)
    publish_bytes(part / ARRAYS, save(arrays, {"format": "np"}))
    publish_text(part / CONFIG, recipe.to_json(None if predictor.prior is None else predictor.prior.to_numbers()))
    publish_text(part / "README.md", write_card(recipe, arrays, difference, predictor.prior))
    if onnx:
        example = files(__package__).joinpath("onnx_example.txt").read_text(encoding="utf-8")
        publish_text(part / ONNX_EXAMPLE, example)
    if with_backbone:
        copy_backbone(locate(predictor.model.encoder.clip.name), part / BACKBONE)
    return difference


def _arrays(predictor: Predictor) -> dict[str, NDArray[Any]]:
    """The prompts, and what is known beforehand; the numbers of that stand in config.json."""
    prior = {} if predictor.prior is None else predictor.prior.to_arrays()
    known = {f"{PRIOR}{name}": array for name, array in prior.items() if name != "numbers"}
    return {name: np.ascontiguousarray(array) for name, array in {**predictor.prompts, **known}.items()}


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
