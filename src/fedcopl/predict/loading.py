"""Where classifiers come from: an exported folder, or a run and the name of one of its clients."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ..clip.formats.hub import BUILT_IN, RELEASES
from ..clip.frozen_clip import Clip, fingerprint
from ..config import RunConfig
from ..data.dataset import TEMPLATE, Dataset, clean_all, read_classes, read_other_names
from ..errors import ConfigError, ModelError
from ..federation.state_arrays import below
from ..files import no_folder
from ..methods import run_title
from ..methods.prompted_model import PromptedModel
from ..published import load_written
from ..run.build import BuiltModel, build_clip, build_model, images_of_clients
from ..run.folder import PRIORS, class_prior_path, file_name
from ..run.progress_reporter import SilentReporter
from ..run.reading import read_finished
from ..run.record import ClientRecord
from .classifier import Classifier, Predictor
from .prior import NUMBERS, PRIOR, Prior, prior_from
from .recipe import (
    ARRAYS,
    BACKBONE,
    CONFIG,
    SHARE,
    Confidence,
    Recipe,
    TrainedOn,
    is_exported,
    parse_recipe,
    read_prior_numbers,
    read_recipe,
)

PromptArrays = Mapping[str, NDArray[np.float32]]
_CLIPS: WeakValueDictionary[str, Clip] = WeakValueDictionary()  # of unpickled classifiers, by their fingerprint


def load(
    folder: Path,
    *,
    client: str | None = None,
    backbone: str | Path | None = None,
    device: str = "auto",
    precision: str = "fp32",
) -> Classifier:
    """The classifier in a folder; a run has one for each client, so one must be named."""
    if is_exported(folder):
        return _load_exported(folder, backbone, device, precision)
    if (folder / "settings.toml").is_file():
        run = FinishedRun(folder, backbone=backbone, device=device, precision=precision)
        return run.classifier(run.choose(client))
    if not folder.is_dir():
        raise ModelError(f"{folder}: {no_folder(folder)}")
    raise ModelError(f"{folder}: holds neither an exported classifier ({CONFIG}) nor a run (settings.toml)")


def zero_shot(classes_file: Path, backbone: str | Path, device: str = "auto") -> Classifier:
    """Return plain CLIP as a classifier of the classes that a file names, one a line; it needs no run."""
    classes = clean_all(read_classes(classes_file), classes_file)
    template = TEMPLATE + read_other_names(classes_file)
    config = RunConfig(method="zeroshot")
    built = _build(config, classes, template, backbone, device, "fp32")
    clip = TrainedOn(_public_name(str(backbone)), fingerprint(built.clip))
    return Classifier(Predictor(built.model, built.start), Recipe(classes, template, config, clip))


def _load_exported(folder: Path, backbone: str | Path | None, device: str, precision: str) -> Classifier:
    recipe = read_recipe(folder / CONFIG)
    where = backbone or _where(folder, recipe.backbone)
    model = _build(recipe.config, recipe.classes, recipe.template, where, device, precision).model
    _refuse_another(model.encoder.clip, recipe.backbone, where, str(folder))
    arrays, numbers = read_arrays(folder / ARRAYS), read_prior_numbers(folder / CONFIG)
    prompts = {name: array for name, array in arrays.items() if not name.startswith(PRIOR)}
    try:
        prior = None if numbers is None else _prior_of(below(arrays, PRIOR), numbers, model)
        return Classifier(Predictor(model, prompts, prior), recipe)
    except ModelError as error:
        raise ModelError(f"{folder / ARRAYS}: {error}") from error


def restored(written: str, prompts: PromptArrays, prior: Prior | None, where: str, precision: str) -> Classifier:
    """A classifier from what `pickle` kept of it: all but its CLIP, which is loaded once for all that have the same."""
    recipe = parse_recipe(written, "the pickled classifier")
    wanted = recipe.backbone.fingerprint
    clip = _CLIPS.get(wanted)
    try:
        model = _build(recipe.config, recipe.classes, recipe.template, where, "auto", precision, clip).model
    except ModelError as error:
        raise ModelError(
            f"a pickled classifier has no CLIP model here: {error}; for other machines, export it"
        ) from error
    if clip is None:
        _refuse_another(model.encoder.clip, recipe.backbone, where, "the pickled classifier")
        _CLIPS[wanted] = model.encoder.clip
    return Classifier(Predictor(model, prompts, prior), recipe)


def _refuse_another(clip: Clip, trained_on: TrainedOn, where: str | Path, whose: str) -> None:
    found, wanted = fingerprint(clip), trained_on.fingerprint
    if found != wanted:
        raise ModelError(
            f"{where}: is not the CLIP model that {whose} was trained on, {trained_on.name}: "
            f"its fingerprint is {found}, not {wanted}"
        )


def _prior_of(arrays: Mapping[str, NDArray[np.float64]], numbers: Mapping[str, float], model: PromptedModel) -> Prior:
    """The arrays of one file and the numbers of the other, put together."""
    values = np.array([numbers[name] for name in NUMBERS])
    return prior_from({**arrays, "numbers": values}, model.encoder.classes, model.encoder.clip.feature_size)


def _where(folder: Path, backbone: TrainedOn) -> str | Path:
    """The model's files: in the folder, or known by name. A name out of a file must not lead to just any path."""
    if backbone.included:
        files = [file for file in (folder / BACKBONE).glob("*") if file.is_file()]
        if not files:
            raise ModelError(f"{folder / BACKBONE}: the CLIP model that should lie here is missing")
        return files[0] if len(files) == 1 else folder / BACKBONE
    if backbone.is_known:
        return backbone.name
    raise ModelError(f"{folder}: was trained on a model of its owner's, {backbone.name}; say where it lies: --backbone")


def read_arrays(file: Path, kind: type[np.floating[Any]] = np.float32) -> dict[str, NDArray[Any]]:
    """The named arrays of a safetensors file, of this kind but for a prior's."""
    try:
        with safe_open(file, framework="numpy") as opened:
            arrays = {name: np.asarray(opened.get_tensor(name)) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file}: cannot be read: {error}") from error
    for name, array in arrays.items():
        wanted = np.dtype(np.float64 if name.startswith(PRIOR) else kind)
        if array.dtype != wanted or not np.isfinite(array).all():
            bits = 8 * wanted.itemsize
            raise ModelError(f"{file}: the array {name!r} does not hold ordinary numbers of {bits} bits")
    return arrays


class FinishedRun:
    """A finished run's folder, and the classifiers in it. They share one CLIP."""

    def __init__(
        self, folder: Path, *, backbone: str | Path | None = None, device: str = "auto", precision: str = "fp32"
    ):
        self.folder = folder
        self.config: RunConfig = load_written(folder / "settings.toml")
        self.outcome = read_finished(folder)
        self.classes = self.outcome.classes
        self.template = self.outcome.template or self.config.model.template or TEMPLATE
        self._where = (backbone or self.config.model.backbone, device, precision)

    @cached_property
    def _built(self) -> BuiltModel:
        """Loaded when it is first needed: a wrong name of a client is found before."""
        return _build(self.config, self.classes, self.template, *self._where)

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
        """The client that is meant: the one named, or the only one."""
        if client in self.clients:
            return str(client)
        if client is None and len(self.clients) == 1:
            return self.clients[0]
        known = ", ".join(self.clients[:10]) + (", ..." if len(self.clients) > 10 else "")
        if client is None:
            raise ConfigError(f"{self.folder}: has a classifier for each client; name one with --client ({known})")
        near = difflib.get_close_matches(client, self.clients, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{self.folder}: has no client {client!r} ({known}){hint}")

    def classifier(self, client: str) -> Classifier:
        """One client's model as its last exam saw it: where all began, its own arrays, and the server's."""
        prompts = {
            **self._built.start,
            **self._arrays("server"),
            **self._arrays(f"clients/{file_name(client)}"),  # also what a site keeps because the average harms it
        }
        backbone = TrainedOn(_public_name(self.config.model.backbone), self._fingerprint)
        recipe = Recipe(self.classes, self.template, self.config, backbone, about=self._about(client))
        return Classifier(Predictor(self.model, prompts, self._prior(client)), recipe)

    def _prior(self, client: str) -> Prior | None:
        """What it knows beforehand; folders of version 0.1 hold no such thing, nor do runs without priors."""
        own, pooled = class_prior_path(self.folder, client), self.folder / PRIORS
        if not own.exists():
            return None
        known = read_arrays(pooled, np.float64) if pooled.exists() else {}
        mixed = read_arrays(own, np.float64)
        arrays = mixed if len(mixed) > 1 else known | mixed  # with more it missed what the others learned last
        try:
            return prior_from(arrays, len(self.classes), self.model.encoder.clip.feature_size)
        except ModelError as error:
            raise ModelError(f"{own}: {error}") from error

    def _arrays(self, name: str) -> PromptArrays:
        return read_arrays(self.folder / "prompts" / f"{name}.safetensors")

    def _about(self, client: str) -> dict[str, Any]:
        [own] = [entry for entry in self.outcome.clients if entry.name == client]
        return {
            "client": client,
            "training": dict(_training(self.config, self.clients, own)),
            "accuracy": _accuracy(own),
            "versions": dict(self.outcome.versions),
        }


def _build(
    config: RunConfig,
    classes: Sequence[str],
    template: str,
    backbone: str | Path,
    device: str,
    precision: str,
    clip: Clip | None = None,
) -> BuiltModel:
    """The method of the settings on its frozen CLIP, or on the same CLIP from another place."""
    here = {"backbone": str(backbone), "device": device, "precision": precision, "threads": 0}
    settings = config.model_dump()
    wanted = RunConfig.from_mapping({**settings, "model": {**settings["model"], **here}}, "the classifier")
    return build_model(wanted, clip or build_clip(wanted.model), classes, template)


def _public_name(backbone: str) -> str:
    known = backbone in BUILT_IN or backbone in RELEASES
    return backbone if known else Path(backbone).name


def _training(config: RunConfig, clients: Sequence[str], own: ClientRecord) -> Iterator[tuple[str, Any]]:
    """What a reader of the model card wants to know; no path, no file name."""
    yield "method", run_title(config)
    yield "rounds", config.rounds
    yield "epochs", config.train.epochs
    yield "learning rate", config.train.lr
    yield "seed", config.seed
    yield "sites", len(clients)
    yield "images of this site", own.train


def _accuracy(own: ClientRecord) -> dict[str, Any] | None:
    return None if own.final is None else {"final": own.final, "zero_shot": own.zero_shot, "images": own.test}


class OwnImages:
    """Every client's own images of a run; `dataset` stands in for the one its settings name."""

    def __init__(self, run: FinishedRun, dataset: Dataset | None = None):
        self.run = run
        transform = run.model.encoder.clip.preprocess
        self._pixels, self._rows = images_of_clients(run.config, transform, SilentReporter(), dataset)

    def classifier(self, client: str, share: float = SHARE) -> Classifier:
        """A client's classifier that knows how sure it is of its own images; one without images knows nothing."""
        plain, own = self.run.classifier(client), self._rows[client]
        if not len(own):
            return plain
        confidence = Confidence.of(plain.predictor.log_probabilities(self._pixels, own))
        return Classifier(plain.predictor, replace(plain.recipe, confidence=confidence, share=share))
