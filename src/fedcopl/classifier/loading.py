"""Loading classifiers from an exported folder or from the folder of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from ..clip.frozen_clip import Clip, fingerprint
from ..config import RunConfig
from ..config import load as load_config
from ..data.dataset import TEMPLATE, Dataset, read_classes
from ..errors import ConfigError, ModelError, RunFolderError, did_you_mean
from ..federation.client_state import select_prefix
from ..files import no_folder
from ..methods import run_title
from ..methods.prompted_model import PromptedModel
from ..run.build import BuiltModel, build_clip, build_model, images_of_clients
from ..run.folder import PRIORS, SHARED_PROMPTS, class_prior_file, own_prompts_file, read_finished
from ..run.progress_reporter import ProgressReporter
from .predict import Classifier, Predictor
from .prior import PRIOR, Prior
from .recipe import ARRAYS, BACKBONE, CONFIG, SHARE, Confidence, Recipe, TrainedOn, is_exported

_PromptArrays = Mapping[str, NDArray[np.float32]]
_CLIPS: WeakValueDictionary[str, Clip] = WeakValueDictionary()  # CLIP models of unpickled classifiers, by fingerprint


def load(
    folder: Path,
    *,
    client: str | None = None,
    backbone: str | Path | None = None,
    device: str = "auto",
    precision: str = "fp32",
) -> Classifier:
    """Load a classifier; see `Classifier.load`."""
    if is_exported(folder):
        return _load_exported(folder, backbone, device, precision)
    if (folder / "settings.toml").is_file():
        run = FinishedRun(folder, backbone=backbone, device=device, precision=precision)
        return run.classifier(run.choose(client))
    if not folder.is_dir():
        raise ModelError(f"{folder}: {no_folder(folder)}; name the folder of fedcopl export, or of a run")
    raise ModelError(
        f"{folder}: has neither an exported classifier ({CONFIG}) nor a run (settings.toml); "
        "export one with: fedcopl export RUN -o FOLDER"
    )


def zero_shot(classes_file: Path, backbone: str | Path, device: str = "auto") -> Classifier:
    """Return zero-shot CLIP as a classifier for a list of classes in a file, one per line."""
    class_list = read_classes(classes_file)
    classes, template = tuple(class_list.names), TEMPLATE + class_list.synonyms
    config = RunConfig(method="zeroshot")
    built = _build(config, classes, template, backbone, device, "fp32")
    clip = TrainedOn.of(str(backbone), fingerprint(built.clip))
    return Classifier(Predictor(built.model, built.start), Recipe(classes, template, config, clip))


def _load_exported(folder: Path, backbone: str | Path | None, device: str, precision: str) -> Classifier:
    recipe = Recipe.read(folder / CONFIG)
    backbone = backbone or _backbone_path(folder, recipe.backbone)
    model = _build(recipe.config, recipe.classes, recipe.template, backbone, device, precision).model
    clip, arrays = model.encoder.clip, _read_arrays(folder / ARRAYS)
    _check_fingerprint(clip, recipe.backbone, backbone, str(folder))
    prompts = {name: array for name, array in arrays.items() if not name.startswith(PRIOR)}
    stored = select_prefix(arrays, PRIOR)
    try:
        prior = Prior.from_arrays(stored, len(recipe.classes), clip.feature_size) if stored else None
        return Classifier(Predictor(model, prompts, prior), recipe)
    except ModelError as error:
        raise ModelError(f"{folder / ARRAYS}: {error}") from error


def restore(recipe_json: str, prompts: _PromptArrays, prior: Prior | None, backbone: str, precision: str) -> Classifier:
    """Restore a pickled classifier; several classifiers of one CLIP model share the model."""
    recipe = Recipe.parse(recipe_json, "the pickled classifier")
    clip = _CLIPS.get(recipe.backbone.fingerprint)
    try:
        model = _build(recipe.config, recipe.classes, recipe.template, backbone, "auto", precision, clip).model
    except ModelError as error:
        raise ModelError(
            f"the CLIP model of a pickled classifier was not found: {error}; to move a classifier to another machine, "
            "export it instead of pickling it"
        ) from error
    if clip is None:
        _check_fingerprint(model.encoder.clip, recipe.backbone, backbone, "the pickled classifier")
        _CLIPS[recipe.backbone.fingerprint] = model.encoder.clip
    return Classifier(Predictor(model, prompts, prior), recipe)


def _check_fingerprint(clip: Clip, trained_on: TrainedOn, path: str | Path, artifact: str) -> None:
    actual = fingerprint(clip)
    if actual != trained_on.fingerprint:
        raise ModelError(
            f"{path}: is not the CLIP model that {artifact} was trained on, {trained_on.name}: "
            f"its fingerprint is {actual}, not {trained_on.fingerprint}"
        )


def _backbone_path(folder: Path, backbone: TrainedOn) -> str | Path:
    """Return the path of the CLIP model in a classifier's folder, or its public name.

    An untrusted config.json may contain any name; it is never used as a path.
    """
    if backbone.included:
        files = [file for file in (folder / BACKBONE).glob("*") if file.is_file()]
        if not files:
            raise ModelError(f"{folder / BACKBONE}: has no CLIP model; add its files or repeat the export")
        return files[0] if len(files) == 1 else folder / BACKBONE
    if backbone.is_known:
        return backbone.name
    raise ModelError(f"{folder}: was trained on {backbone.name}, not a known model; give its path with --backbone")


def _read_arrays(file: Path, kind: type[np.floating[Any]] = np.float32) -> dict[str, NDArray[Any]]:
    """Read the arrays of a safetensors file; the arrays of priors must be float64, all others of type `kind`.

    Raises:
        ModelError: The file is damaged, or an array has another type or values that are not finite.
    """
    try:
        arrays = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file}: cannot be read: {error}") from error
    for name, array in arrays.items():
        dtype = np.dtype(np.float64 if name.startswith(PRIOR) else kind)
        if array.dtype != dtype or not np.isfinite(array).all():
            raise ModelError(f"{file}: the array {name!r} does not contain finite {dtype.name} numbers")
    return arrays


class FinishedRun:
    """The classifiers of a finished run, which share one CLIP model.

    Raises:
        RunFolderError: The run is not finished, or damaged.
    """

    def __init__(
        self, folder: Path, *, backbone: str | Path | None = None, device: str = "auto", precision: str = "fp32"
    ):
        if not (folder / "settings.toml").is_file():
            reason = "has no settings.toml, so it is not a run" if folder.is_dir() else no_folder(folder)
            raise RunFolderError(f"{folder}: {reason}; name the folder of a finished run, as in fedcopl run -o FOLDER")
        self.folder = folder
        self.config: RunConfig = load_config(folder / "settings.toml")
        self.outcome = read_finished(folder)
        self.classes = self.outcome.classes
        self.template = self.outcome.template or self.config.model.template or TEMPLATE
        self._build_options = (backbone or self.config.model.backbone, device, precision)

    @cached_property
    def _built(self) -> BuiltModel:
        """The model, loaded at first use, so that a wrong client name is reported before."""
        return _build(self.config, self.classes, self.template, *self._build_options)

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.model.encoder.clip)

    @property
    def model(self) -> PromptedModel:
        return self._built.model

    @property
    def clients(self) -> list[str]:
        return [client.name for client in self.outcome.clients]

    def choose(self, client: str | None) -> str:
        """Return `client`, or if it is None the only client; raises ConfigError if neither exists."""
        if client in self.clients:
            return str(client)
        if client is None and len(self.clients) == 1:
            return self.clients[0]
        names = ", ".join(self.clients[:10]) + (", ..." if len(self.clients) > 10 else "")
        if client is None:
            raise ConfigError(f"{self.folder}: has a classifier for each client; name one with --client ({names})")
        raise ConfigError(f"{self.folder}: has no client {client!r} ({names}){did_you_mean(client, self.clients)}")

    def classifier(self, client: str) -> Classifier:
        """Return one client's model as it was last evaluated."""
        prompts = {
            **self._built.start,
            **_read_arrays(self.folder / SHARED_PROMPTS),
            **_read_arrays(own_prompts_file(self.folder, client)),  # includes shared arrays after a rollback
        }
        backbone = TrainedOn.of(self.config.model.backbone, self._fingerprint)
        recipe = Recipe(self.classes, self.template, self.config, backbone, about=self._about(client))
        return Classifier(Predictor(self.model, prompts, self._prior(client)), recipe)

    def _prior(self, client: str) -> Prior | None:
        """Return the priors of a client; None for a run without priors."""
        file, common = class_prior_file(self.folder, client), self.folder / PRIORS
        if not file.exists():
            return None
        arrays = _read_arrays(file, np.float64)
        if len(arrays) == 1 and common.exists():  # only the class prior; the model is stored once for all clients
            arrays = _read_arrays(common, np.float64) | arrays
        try:
            return Prior.from_arrays(arrays, len(self.classes), self.model.encoder.clip.feature_size)
        except ModelError as error:
            raise ModelError(f"{file}: {error}") from error

    def _about(self, client: str) -> dict[str, Any]:
        """Return facts for the model card, without paths and file names."""
        [record] = [record for record in self.outcome.clients if record.name == client]
        accuracy = {"final": record.final, "zero_shot": record.zero_shot, "images": record.test}
        training = {
            "method": run_title(self.config),
            "rounds": self.config.rounds,
            "epochs": self.config.train.epochs,
            "learning rate": self.config.train.lr,
            "seed": self.config.seed,
            "sites": len(self.clients),
            "images of this site": record.train,
        }
        measured = None if record.final is None else accuracy
        return {"client": client, "training": training, "accuracy": measured, "versions": dict(self.outcome.versions)}


def _build(
    config: RunConfig,
    classes: Sequence[str],
    template: str,
    backbone: str | Path,
    device: str,
    precision: str,
    clip: Clip | None = None,
) -> BuiltModel:
    """Build the method of the settings with a CLIP model, which is loaded from `backbone` unless given."""
    overrides = {"backbone": str(backbone), "device": device, "precision": precision, "threads": 0}
    settings = config.model_dump()
    config = RunConfig.from_mapping({**settings, "model": {**settings["model"], **overrides}}, "the classifier")
    return build_model(config, clip or build_clip(config.model), classes, template)


class TrainingImages:
    """The training images of all clients of a run, from its settings or from `dataset`."""

    def __init__(self, run: FinishedRun, dataset: Dataset | None = None):
        self.run = run
        transform = run.model.encoder.clip.preprocess
        self._pixels, self._rows = images_of_clients(run.config, transform, ProgressReporter(), dataset)

    def classifier(self, client: str, share: float = SHARE) -> Classifier:
        """Return a client's classifier; if the client has images, it abstains on this share of them."""
        classifier, rows = self.run.classifier(client), self._rows[client]
        if not len(rows):
            return classifier
        confidence = Confidence.of(classifier.predictor.log_probabilities(self._pixels, rows))
        return Classifier(classifier.predictor, replace(classifier.recipe, confidence=confidence, share=share))
