"""Exporting a classifier into a folder with a model card."""

import json
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from textwrap import fill

import numpy as np
from safetensors.numpy import save

from ..clip.formats.hugging_face import WEIGHT_FILES
from ..clip.formats.open_clip import OPEN_CLIP_WEIGHTS
from ..clip.known_models import RELEASES, locate
from ..errors import RunFolderError
from ..files import check_output_folder, publish_bytes, publish_text
from ..plurals import counted
from ..run.folder import SITE_PRIOR
from .onnx_export import Difference, export_onnx
from .predict import Classifier
from .prior import PRIOR, Prior
from .recipe import ARRAYS, BACKBONE, CLASS_PRIOR, CONFIG, Recipe

_TAGS = ("federated-learning", "unsupervised", "clip", "prompt-tuning")
_ONNX_FILE, _ONNX_EXAMPLE = "classifier.onnx", "example_onnx.py"
_ONNX_PRIOR = """\
Its `logits` are log-probabilities. The class prior is the initializer `log_prior`, the logarithm of a share for each
class, and can be given with the pixels:"""
_ONNX_SETTING = """\
```python
log_prior = numpy.log(shares).astype("float32")  # one positive share per class, in their order
session.run(["logits", "probabilities"], {"pixels": pixels, "log_prior": log_prior})
```"""
_OTHER_PRIOR = " Accuracy and threshold were measured with the class prior of its site."
_USE = """\
```sh
pip install fedcopl
fedcopl predict --classifier THIS-FOLDER PHOTOS -o predictions.csv
```

```python
from fedcopl import Classifier

classifier = Classifier.load("THIS-FOLDER")
classifier.predict(["photo.jpg"])
```"""


def write_card(recipe: Recipe, arrays: Collection[str], onnx: Difference | None, prior: Prior | None = None) -> str:
    """Return the model card; names of classes and sites are escaped.

    Args:
        recipe: The classifier's description.
        arrays: The names of its arrays.
        onnx: How far the ONNX file differs from torch, if there is one.
        prior: Its priors.
    """
    client = recipe.about.get("client")
    use = _USE
    if not recipe.backbone.included and not recipe.backbone.is_known:  # the path of the CLIP model must be given
        use = use.replace(" -o predictions.csv", " -o predictions.csv --backbone MODEL")
        use = use.replace('load("THIS-FOLDER")', 'load("THIS-FOLDER", backbone="MODEL")')
    abstains = "It never abstains: no threshold was measured."
    if recipe.confidence is not None:
        abstains = (
            f"It abstains below a probability of {recipe.threshold:.4f}, which {recipe.share:.0%} of the "
            f"{counted(recipe.confidence.images, 'unlabelled image')} of its own site do not reach. "
            "The threshold tells how unusual an image is for the classifier, not how often it is wrong."
        )
    facts = {**recipe.about.get("training", {}), **recipe.about.get("versions", {})}
    table = ["| | |", "|---|---|", *(f"| {_quoted(name)} | {_quoted(value)} |" for name, value in facts.items())]
    parts = [
        _head(recipe),
        f"# Classifier of {_quoted(client)}" if client else "# Classifier",
        fill(_summary(recipe), 120),
        "The classes, in the order of the probabilities:",
        "\n".join(f"    {name}" for name in recipe.classes),
        "## How to use it",
        use,
        *_priors(recipe.classes, prior, recipe.about.get(CLASS_PRIOR)),
        "## When it abstains",
        fill(abstains, 120),
        *(["## How it was trained", "\n".join(table)] if facts else []),
        "## What is in it",
        fill(_privacy(arrays), 120),
        fill(_backbone(recipe), 120),
        *_onnx(onnx, prior),
    ]
    return "\n\n".join(parts) + "\n"


def _head(recipe: Recipe) -> str:
    """Return the YAML header for the hub; values are written as JSON, so that names cannot break out of it."""
    release = RELEASES.get(recipe.backbone.name)
    lines = [
        "---",
        "library_name: fedcopl",
        "pipeline_tag: image-classification",
        f"tags: {json.dumps([*_TAGS, recipe.config.method])}",
        *([f"base_model: {json.dumps(release.name)}"] if release else []),
        "---",
    ]
    return "\n".join(lines)


def _summary(recipe: Recipe) -> str:
    accuracy, measured = recipe.about.get("accuracy"), "The site has no labelled images: **accuracy is unknown**."
    if accuracy is not None:
        measured = (
            f"Its accuracy on {counted(accuracy['images'], 'labelled test image')} of its site is "
            f"**{accuracy['final']:.1%}**, that of zero-shot CLIP {accuracy['zero_shot']:.1%}. It may be lower on "
            "images of other sites."
        )
    return (
        f"It distinguishes {counted(len(recipe.classes), 'class')}. Several sites trained it without labels by the "
        f"method `{recipe.config.method}` of fedcopl, on the frozen CLIP model {_quoted(recipe.backbone.name)}. "
        + measured
        + (_OTHER_PRIOR * (CLASS_PRIOR in recipe.about))
    )


def _priors(classes: Sequence[str], prior: Prior | None, origin: str | None) -> Iterator[str]:
    """Yield the section about priors, with the class prior that the classifier uses."""
    if prior is None:
        return
    model, has_prototypes = prior.model, prior.model.prototypes is not None
    yield "## Priors"
    yield fill(
        "A prediction combines the model's probabilities, a logit bias that removes its preference for some classes"
        + (", the distance to the prototype of each class over all sites" if has_prototypes else "")
        + ", and the **class prior**, the shares of the classes where the image comes from: "
        f"log p = {model.text_scale:g} log p(model)"
        + (f" - {model.feature_scale / 2:g} distance^2" if has_prototypes else "")
        + " + logit bias + log(class prior), up to a constant. It uses this class prior, "
        + (f"**{_quoted(origin)}**, not that of its site:" if origin else "estimated without labels at its site:"),
        120,
    )
    width = max(map(len, classes))
    yield "\n".join(f"    {name:<{width}}  {share:7.2%}" for name, share in prior.named_class_prior(classes).items())
    yield fill(
        "For images with another class prior use `fedcopl predict --prior FILE` with a table `class,share`, "
        "`--prior images` to estimate it from the images, or `--prior none` for that of all sites together; "
        'in Python `classifier.with_prior({"class": share, ...})`, `("images", images)` and `("none")`.',
        120,
    )


def _privacy(arrays: Collection[str]) -> str:
    memory, class_prior = "memory keys" in arrays, f"{PRIOR}{SITE_PRIOR}" in arrays
    return (
        "Prompts: arrays that were trained on the site's images. They contain no image, but may reveal information "
        "about the images: share this folder as you would any model that was trained on them. Personal arrays never "
        "left the site during training; they are in this folder."
        + (" So are the class prior above and the sums of image features over all sites." * class_prior)
        + (f" **Features of some of the site's own images are in `{ARRAYS}`**: the method stores them." * memory)
    )


def _backbone(recipe: Recipe) -> str:
    backbone = recipe.backbone
    if backbone.included:
        location = "is in `backbone/`"
    elif backbone.is_known:
        location = "is not in this folder; it is found by its name"
    else:
        location = "is not in this folder and has no public name: give its path with `--backbone`"
    return f"The CLIP model {location}. It must have the fingerprint `{backbone.fingerprint}`."


def _onnx(difference: Difference | None, prior: Prior | None) -> Iterator[str]:
    if difference is not None:
        yield "## ONNX"
        yield fill(
            f"`{_ONNX_FILE}` is the whole classifier with CLIP: `pixels` (uint8, batch x 3 x side x side) in, `logits` "
            f"and `probabilities` out. On {difference.images} synthetic images its logits differ from torch's by at "
            f"most {difference.logits:.1e}, its probabilities by {difference.probabilities:.1e}. "
            f"`python {_ONNX_EXAMPLE} photo.jpg` uses it with onnxruntime, NumPy and Pillow only.",
            120,
        )
        if prior is not None:
            yield f"{_ONNX_PRIOR}\n\n{_ONNX_SETTING}"


def _quoted(value: object) -> str:
    """Return a value as text with all Markdown characters escaped."""
    text = " ".join(str(value).split())
    return "".join(f"&#{ord(sign)};" if sign in "\\`*_{}[]<>()#!|&~@=^$" else sign for sign in text)


_DESCRIBING = (".json", ".txt")  # files of a model besides its weights: settings, vocabulary


def export(
    classifier: Classifier, folder: Path, *, onnx: bool = False, with_backbone: bool = False
) -> Difference | None:
    """Write a classifier into a temporary folder, which is renamed when it is complete.

    Returns:
        How far the ONNX file differs from torch; None without ONNX.

    Raises:
        RunFolderError: The folder is not empty, or cannot be written.
    """
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
    return difference


def _write(classifier: Classifier, part: Path, onnx: bool, with_backbone: bool) -> Difference | None:
    recipe, predictor = classifier.recipe, classifier.predictor
    recipe = replace(recipe, backbone=replace(recipe.backbone, included=with_backbone))
    difference = export_onnx(predictor, recipe.classes, part / _ONNX_FILE) if onnx else None
    prior = {} if predictor.prior is None else predictor.prior.to_arrays()
    named = {**predictor.prompts, **{f"{PRIOR}{name}": array for name, array in prior.items()}}
    arrays = {name: np.ascontiguousarray(array) for name, array in named.items()}
    publish_bytes(part / ARRAYS, save(arrays, {"format": "np"}))
    publish_text(part / CONFIG, recipe.to_json())
    publish_text(part / "README.md", write_card(recipe, arrays, difference, predictor.prior))
    if onnx:
        example = files(__package__).joinpath("onnx_example.txt").read_text(encoding="utf-8")
        publish_text(part / _ONNX_EXAMPLE, example)
    if with_backbone:
        source, target = locate(predictor.model.encoder.clip.name), part / BACKBONE
        target.mkdir(parents=True)
        for file in [source] if source.is_file() else _needed(source):
            shutil.copyfile(file, target / file.name)
    return difference


def _needed(folder: Path) -> list[Path]:
    """Return the files of a model that loading reads, and no others in its folder."""
    described = [file for file in sorted(folder.iterdir()) if file.suffix in _DESCRIBING and file.is_file()]
    [weights, *_] = [folder / name for name in (*WEIGHT_FILES, *OPEN_CLIP_WEIGHTS) if (folder / name).is_file()]
    if weights.suffix != ".json":
        return [*(file for file in described if not file.name.endswith(".index.json")), weights]
    shards = set(json.loads(weights.read_text(encoding="utf-8"))["weight_map"].values())
    return [*described, *(folder / Path(name).name for name in sorted(shards))]
