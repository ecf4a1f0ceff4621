"""Exporting a classifier into a folder with a model card."""

import json
import shutil
from collections.abc import Collection
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from textwrap import fill

import numpy as np
from jinja2 import Environment, StrictUndefined
from safetensors.numpy import save

from ..clip.formats.hugging_face import WEIGHT_FILES
from ..clip.formats.open_clip import OPEN_CLIP_WEIGHTS
from ..clip.known_models import RELEASES, locate
from ..errors import RunFolderError
from ..files import check_output_folder, publish_bytes, publish_text
from ..plurals import counted
from .onnx_export import Difference, export_onnx
from .predict import Classifier
from .prior import PRIOR, Prior
from .recipe import ARRAYS, BACKBONE, CLASS_PRIOR, CONFIG, Recipe

_TAGS = ("federated-learning", "unsupervised", "clip", "prompt-tuning")
_ONNX_FILE, _ONNX_EXAMPLE = "classifier.onnx", "example_onnx.py"


def _render_card(recipe: Recipe, arrays: Collection[str], onnx: Difference | None, prior: Prior | None = None) -> str:
    """Return the model card from `model_card.md.jinja`; names of classes and sites are escaped."""
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {
        "counted": counted,
        "quoted": _quoted,
        "paragraph": lambda text: fill(" ".join(text.split()), 120),
        "json": json.dumps,  # JSON strings are valid in the YAML header, whatever they contain
    }
    about, backbone = recipe.about, recipe.backbone
    template = files(__package__).joinpath("model_card.md.jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        recipe=recipe,
        arrays=arrays,
        onnx=onnx,
        prior=prior,
        tags=[*_TAGS, recipe.config.method],
        base_model=RELEASES[backbone.name].name if backbone.name in RELEASES else None,
        client=about.get("client"),
        accuracy=about.get("accuracy"),
        class_prior=about.get(CLASS_PRIOR),  # origin of a class prior that is not the site's
        needs_path=not backbone.included and not backbone.is_known,
        facts={**about.get("training", {}), **about.get("versions", {})},
        width=max(map(len, recipe.classes)),
    )


def _quoted(value: object) -> str:
    """Return a value as text with all Markdown characters escaped."""
    text = " ".join(str(value).split())
    return "".join(f"&#{ord(sign)};" if sign in "\\`*_{}[]<>()#!|&~@=^$" else sign for sign in text)


_CONFIG_SUFFIXES = (".json", ".txt")  # of configs and vocabularies


def export(
    classifier: Classifier, folder: Path, *, onnx: bool = False, with_backbone: bool = False
) -> Difference | None:
    """Write a classifier into a temporary folder, which is renamed when it is complete.

    Returns:
        The difference of the ONNX file from torch; None without ONNX.

    Raises:
        RunFolderError: The folder is not empty, or cannot be written.
    """
    check_output_folder(folder, new=True)
    if not folder.name:
        raise RunFolderError(f"{folder}: is the current folder; choose another name")
    part = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        difference = _write_files(classifier, part, onnx, with_backbone)
        if folder.exists():  # an empty folder
            folder.rmdir()
        part.rename(folder)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return difference


def _write_files(classifier: Classifier, part: Path, onnx: bool, with_backbone: bool) -> Difference | None:
    """Write all files of the export into the folder `part`; return the difference of the ONNX file, if requested."""
    recipe, predictor = classifier.recipe, classifier.predictor
    recipe = replace(recipe, backbone=replace(recipe.backbone, included=with_backbone))
    difference = export_onnx(predictor, recipe.classes, part / _ONNX_FILE) if onnx else None
    prior = {} if predictor.prior is None else predictor.prior.to_arrays()
    named = {**predictor.prompts, **{f"{PRIOR}{name}": array for name, array in prior.items()}}
    arrays = {name: np.ascontiguousarray(array) for name, array in named.items()}
    publish_bytes(part / ARRAYS, save(arrays, {"format": "np"}))
    publish_text(part / CONFIG, recipe.to_json())
    publish_text(part / "README.md", _render_card(recipe, arrays, difference, predictor.prior))
    if onnx:
        example = files(__package__).joinpath("onnx_example.txt").read_text(encoding="utf-8")
        publish_text(part / _ONNX_EXAMPLE, example)
    if with_backbone:
        source, target = locate(predictor.model.encoder.clip.name), part / BACKBONE
        target.mkdir(parents=True)
        for file in [source] if source.is_file() else _model_files(source):
            shutil.copyfile(file, target / file.name)
    return difference


def _model_files(folder: Path) -> list[Path]:
    """Return the files in a model's folder that loading reads."""
    configs = [file for file in sorted(folder.iterdir()) if file.suffix in _CONFIG_SUFFIXES and file.is_file()]
    [weights, *_] = [folder / name for name in (*WEIGHT_FILES, *OPEN_CLIP_WEIGHTS) if (folder / name).is_file()]
    if weights.suffix != ".json":
        return [*(file for file in configs if not file.name.endswith(".index.json")), weights]
    shards = set(json.loads(weights.read_text(encoding="utf-8"))["weight_map"].values())
    return [*configs, *(folder / Path(name).name for name in sorted(shards))]
