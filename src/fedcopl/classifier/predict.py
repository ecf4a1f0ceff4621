"""The trained model of a client with scikit-learn's interface: `classes_`, `predict`, `predict_proba`, `score`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from html import escape
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..clip.encoder import ENCODE_BATCH, ClientImages, TokenStore
from ..clip.known_models import BUILT_IN
from ..clip.preprocess import ImageTransform
from ..data.cache import ToPixels
from ..data.dataset import Skipped
from ..data.decoding import BadImage, DecodeOptions
from ..data.images import FilePage, ImageList, ImageSource, pages_of, silence_decoders
from ..data.in_memory import ImageLabels, Images, class_numbers, collect_images, files_below
from ..data.label_files import parse_class_prior
from ..data.parallel import parallel_map
from ..errors import ConfigError, DataError, ModelError, naming_arguments
from ..methods.prompted_model import FeatureExtractor, PromptedModel, Prompts
from ..plurals import counted
from .prior import Prior
from .recipe import CLASS_PRIOR, SHARE, Confidence, Recipe


class NamedImage(NamedTuple):
    """An image and its name."""

    name: str
    picture: ImageSource


class Prediction(NamedTuple):
    """The prediction for one image."""

    image: str
    label: str | None  # None if the classifier abstains, or the image cannot be read
    probability: float | None  # of the most probable class
    abstains: bool | None  # None without a threshold
    problem: str | None  # why the image cannot be read
    top: tuple[tuple[str, float], ...]  # the most probable classes, whether it abstains or not


@dataclass(frozen=True)
class _ImageBatch:
    """A batch of decoded and resized images."""

    names: Sequence[str]
    pixels: NDArray[np.uint8]  # of the readable images, in order
    problems: Mapping[int, str]  # position of an unreadable image -> reason


def check_paths_exist(paths: Iterable[str]) -> None:
    """Raise DataError if a path does not exist."""
    for path in paths:
        if not Path(path).exists():
            raise DataError(f"{path}: there is no such file or folder")


def pictures_at(paths: Sequence[str], skipped: list[Skipped], options: DecodeOptions) -> Iterator[NamedImage]:
    """Yield the images at these paths, and the sorted images in folders, named by their paths.

    Raises:
        DataError: A path does not exist, or there is no image.
    """
    check_paths_exist(paths)

    def list_pictures() -> Iterator[NamedImage]:
        for path in map(Path, paths):
            if path.is_dir():
                images = _images_in(path, skipped)
                yield from (NamedImage((path / image.name).as_posix(), image.picture) for image in images)
            else:
                yield NamedImage(path.as_posix(), FilePage(path))

    pictures = _split_pages(list_pictures(), options)
    first = next(pictures, None)
    if first is None:
        raise DataError(f"{', '.join(paths)}: contains no image; name image files, or folders with images")
    return chain([first], pictures)


def _images_in(folder: Path, skipped: list[Skipped]) -> Iterator[NamedImage]:
    """Yield the images in a folder and its subfolders, named by their relative paths."""
    root = folder.resolve()
    return (NamedImage(file.relative_to(root).as_posix(), FilePage(file)) for file in files_below(root, skipped))


def _split_pages(pictures: Iterable[NamedImage], options: DecodeOptions) -> Iterator[NamedImage]:
    """Yield the pages of files as images named file#1, file#2, ... if the options select all pages."""
    for image in pictures:
        pages = pages_of(image.picture, options)
        numbered = [f"{image.name}#{number}" for number in range(1, len(pages) + 1)]
        yield from map(NamedImage, numbered if len(pages) > 1 else [image.name], pages)


def batches(pictures: Iterable[NamedImage], to_pixels: ToPixels, options: DecodeOptions) -> Iterator[_ImageBatch]:
    """Decode images, apply the transform `to_pixels`, and yield them in batches of `ENCODE_BATCH`.

    Evaluation has the same batches, so equal images in equal order give bit-identical results.
    """
    iterator = iter(pictures)
    while chunk := list(islice(iterator, ENCODE_BATCH)):
        images = ImageList([image.picture for image in chunk]).with_options(options)
        with silence_decoders():
            results = list(parallel_map(partial(_read_pixels, images, to_pixels), len(chunk)))
        readable = [result for result in results if not isinstance(result, str)]
        problems = {index: result for index, result in enumerate(results) if isinstance(result, str)}
        pixels = np.stack(readable) if readable else np.zeros((0,), np.uint8)
        yield _ImageBatch([image.name for image in chunk], pixels, problems)


def _read_pixels(images: ImageList, to_pixels: ToPixels, index: int) -> NDArray[np.uint8] | str:
    try:
        return to_pixels(images[index])
    except BadImage as error:
        return str(error)


class Predictor:
    """One client's prompts on a model that several clients may share.

    Raises:
        ModelError: The prompts do not fit the method and model.
    """

    def __init__(self, model: PromptedModel, prompts: Prompts, prior: Prior | None = None):
        self.model, self.prompts, self.prior = model, prompts, prior
        clip = model.encoder.clip
        for name, shape in model.method.shapes(clip, model.encoder.classes).items():
            if name not in prompts:
                raise ModelError(f"the array {name!r} is missing from the prompts of {model.method.config.method}")
            if prompts[name].shape != shape:
                actual = prompts[name].shape
                raise ModelError(f"the prompt {name!r} has the shape {actual}; with {clip.name} it must have {shape}")

    @property
    def transform(self) -> ImageTransform:
        """The image transform of the model."""
        return self.model.encoder.clip.preprocess

    def log_probabilities(
        self, pixels: NDArray[np.uint8], rows: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """Return log p_c(x), (n, C), by the posterior model of the prior if there is one.

        Args:
            pixels: Preprocessed images, (n, 3, side, side).
            rows: The positions of the images to predict; None: all.
        """
        rows = np.arange(len(pixels)) if rows is None else rows
        parts = [np.zeros((0, self.model.encoder.classes))]
        for start in range(0, len(rows), ENCODE_BATCH):
            batch = pixels[rows[start : start + ENCODE_BATCH]]
            if self.prior is None:
                parts.append(self.logits(batch).double().log_softmax(-1).numpy())
            else:
                parts.append(self.prior.log_posteriors(*self.model_outputs(batch)))
        return np.concatenate(parts)

    def model_outputs(self, pixels: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return log p of a batch without the prior, (n, C), and the features of zero-shot CLIP, (n, d)."""
        extractor = self._extractor(pixels)
        return extractor.logits(self.prompts).double().log_softmax(-1).numpy(), extractor.zero_shot_array()

    def logits(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Return the logits of one batch without the prior, (n, C), on the CPU."""
        return self._extractor(pixels).logits(self.prompts)

    def _extractor(self, pixels: NDArray[np.uint8]) -> FeatureExtractor:
        images = ClientImages(TokenStore(self.model.encoder.clip, pixels), np.arange(len(pixels)))
        return FeatureExtractor(self.model, images)


class Classifier:
    """A classifier: a frozen CLIP, one client's prompts and the names of the classes.

    For scikit-learn it is a fitted classifier without hyperparameters; a federation replaces `fit`. `pickle` and
    `joblib` store everything except the CLIP model, which is loaded again by its name or path; use `export` for other
    machines. Images are a folder, a file, a Pillow image, a uint8 array (n, height, width, 3) or (n, height, width),
    or a list of paths, Pillow images or arrays.

    >>> from fedcopl import simulate
    >>> classifier = simulate(rounds=1, clients=2, epochs=1, threads=1, progress=False)["client-0"]
    >>> classifier
    <Classifier of client-0: 10 classes, fedcopl on glyph-clip>
    >>> classifier.predict_proba(np.zeros((3, 8, 8), np.uint8)).shape
    (3, 10)
    """

    _estimator_type = "classifier"  # for scikit-learn before 1.6

    def __init__(self, predictor: Predictor, recipe: Recipe):
        self.predictor, self.recipe = predictor, recipe

    def __sklearn_tags__(self) -> Any:
        """Return the tags that scikit-learn from 1.6 on requires."""
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        target = TargetTags(required=False)
        return Tags("classifier", target, classifier_tags=ClassifierTags(), requires_fit=False)

    def fit(self, *_: object, **__: object) -> NoReturn:
        """Raise ConfigError; the method exists only because scikit-learn requires it."""
        raise ConfigError("fit: a classifier is fitted by a federation; use Federation(...).fit() to fit another")

    def __reduce__(self) -> tuple[Any, ...]:
        from .loading import restore

        encoder, name = self.predictor.model.encoder, self.predictor.model.encoder.clip.name
        backbone = name if name in BUILT_IN or not Path(name).exists() else str(Path(name).resolve())
        precision = encoder.arithmetic.precision
        return restore, (self.recipe.to_json(), dict(self.predictor.prompts), self.prior, backbone, precision)

    def __copy__(self) -> "Classifier":
        return Classifier(self.predictor, self.recipe)

    def __deepcopy__(self, memo: Mapping[int, Any]) -> "Classifier":
        return Classifier(self.predictor, self.recipe)  # both are immutable

    @classmethod
    @naming_arguments()
    def load(
        cls,
        folder: str | Path,
        *,
        client: str | None = None,
        backbone: str | Path | None = None,
        device: str = "auto",
        precision: str = "fp32",
    ) -> "Classifier":
        """Load a classifier.

        Args:
            folder: A folder of `fedcopl export`, or of a run.
            client: The client of a run.
            backbone: The path of the CLIP model, if it is not a known model and not in the folder.
            device: The device: auto, cpu, cuda or mps.
            precision: The precision of the frozen towers: fp32, bf16 or fp16.

        Raises:
            FedCoPLError: The folder has no such classifier, or its CLIP model cannot be found.
        """
        from .loading import load

        return load(Path(folder), client=client, backbone=backbone, device=device, precision=precision)

    @property
    def classes_(self) -> NDArray[np.str_]:
        """The names of the classes, in the order of the columns of `predict_proba`."""
        return np.array(self.recipe.classes)

    @property
    def threshold(self) -> float | None:
        """The probability below which it abstains in `predictions`; None if it never abstains."""
        return self.recipe.threshold

    @property
    def prior(self) -> Prior | None:
        """The priors of the predictions; None for a classifier without priors."""
        return self.predictor.prior

    @property
    def fingerprint(self) -> str:
        """A digest of everything that predictions depend on."""
        backbone = replace(self.recipe.backbone, included=False)
        recipe = replace(self.recipe, about={}, confidence=None, share=SHARE, backbone=backbone)
        digest = sha256(recipe.to_json().encode())
        prior = {} if self.prior is None else self.prior.to_arrays()
        arrays: list[tuple[str, NDArray[Any]]] = [*sorted(self.predictor.prompts.items()), *sorted(prior.items())]
        for name, array in arrays:
            digest.update(f"{name} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def predict(self, images: Images) -> NDArray[np.str_]:
        """Return the name of the most probable class of each image, without abstaining."""
        names: NDArray[np.str_] = self.classes_[self.predict_log_proba(images).argmax(axis=1)]
        return names

    def predict_proba(self, images: Images) -> NDArray[np.float64]:
        """Return the probability of each class for each image, (n, C)."""
        probabilities: NDArray[np.float64] = np.exp(self.predict_log_proba(images))
        return probabilities

    def predict_log_proba(self, images: Images) -> NDArray[np.float64]:
        """Return the log-probability of each class for each image, (n, C), precise also for probabilities near 1.

        Raises:
            DataError: An image cannot be read.
        """
        rows = [np.zeros((0, len(self.recipe.classes)))]
        for batch in self.batches(self._named_images(images)):
            for index, problem in batch.problems.items():
                raise DataError(f"{batch.names[index]}: {problem}")
            rows.append(self.predictor.log_probabilities(batch.pixels))
        return np.concatenate(rows)

    def score(self, images: Images, labels: ImageLabels) -> float:
        """Return the accuracy on labelled images; labels are class names or numbers."""
        truth = class_numbers(labels, self.recipe.classes, "labels")
        predicted = self.predict_log_proba(images).argmax(axis=1)
        if len(truth) != len(predicted) or not len(truth):
            raise DataError(f"labels: {len(truth)} for {counted(len(predicted), 'image')}; give one for each image")
        return float((predicted == truth).mean())

    def predictions(self, images: Images, *, top: int = 3, threshold: float | None = None) -> Iterator[Prediction]:
        """Yield a prediction for each image, also for unreadable images; images are read in batches.

        Args:
            images: The images.
            top: The number of most probable classes to list.
            threshold: The probability below which to abstain; None: that of the classifier.
        """
        for batch in self.prediction_batches(self._named_images(images), top=top, threshold=threshold):
            yield from batch

    def prediction_batches(
        self, pictures: Iterable[NamedImage], *, top: int = 3, threshold: float | None = None
    ) -> Iterator[list[Prediction]]:
        """Yield the predictions of named images, batch by batch; see `predictions`."""
        limit = self.threshold if threshold is None else threshold
        for batch in self.batches(pictures):
            rows = iter(np.exp(self.predictor.log_probabilities(batch.pixels)) if len(batch.pixels) else ())
            predictions = []
            for index, name in enumerate(batch.names):
                if index in batch.problems:
                    predictions.append(Prediction(name, None, None, None, batch.problems[index], ()))
                    continue
                probabilities: NDArray[np.float64] = next(rows)
                order = np.argsort(-probabilities, kind="stable")[: max(top, 1)]
                best = tuple((self.recipe.classes[number], float(probabilities[number])) for number in order)
                label, highest = best[0]
                abstains = None if limit is None else highest < limit
                predictions.append(Prediction(name, None if abstains else label, highest, abstains, None, best[:top]))
            yield predictions

    def with_abstention(self, images: Images, share: float = SHARE) -> "Classifier":
        """Return a copy with a threshold at which it abstains on this share of the given unlabelled images."""
        confidence = Confidence.of(self.predict_log_proba(images))
        confidence.threshold(share)  # DataError unless the share is between 0 and 1
        return Classifier(self.predictor, replace(self.recipe, confidence=confidence, share=share))

    def with_prior(self, prior: str | Mapping[str, float], images: Images | None = None) -> "Classifier":
        """Return a copy for images with another class prior; `threshold` does not change.

        Args:
            prior: "none" for the class prior of all sites together, "images" to estimate it from `images` without
                labels, or a share for each class name.
            images: The images from which to estimate the class prior.
        """
        if isinstance(prior, Mapping):
            return self.with_class_prior(parse_class_prior(prior, self.recipe.classes, "prior"))
        if prior == "none":
            common = self.prior and self.prior.with_class_prior(self.prior.model.class_prior)
            return self._replace_prior(common, "of all sites together") if common else self
        if prior != "images":
            raise ConfigError(f'prior: must be "none", "images" or a share for each class, not {prior!r}')
        if images is None:
            raise ConfigError('prior: "images" also needs the argument images, as in with_prior("images", images)')
        return self.fitted_to(self._named_images(images))

    def with_class_prior(self, class_prior: NDArray[np.float64]) -> "Classifier":
        """Return a copy with this class prior, (C,)."""
        prior = self.prior or Prior.uniform(len(self.recipe.classes))
        return self._replace_prior(prior.with_class_prior(class_prior), "given by the user")

    def fitted_to(self, pictures: Iterable[NamedImage]) -> "Classifier":
        """Return a copy with the class prior estimated from images without labels; unreadable images are skipped."""
        outputs = [self.predictor.model_outputs(batch.pixels) for batch in self.batches(pictures) if len(batch.pixels)]
        if not outputs:
            raise DataError("there is no image to estimate the class prior from")
        log_probs, features = (np.concatenate(column) for column in zip(*outputs, strict=True))
        prior = self.prior or Prior.uniform(len(self.recipe.classes))
        return self._replace_prior(prior.fitted_to(log_probs, features), "estimated from other images")

    def _replace_prior(self, prior: Prior, origin: str) -> "Classifier":
        """Return a copy with another prior, whose origin is noted for the model card."""
        recipe = replace(self.recipe, about={**self.recipe.about, CLASS_PRIOR: origin})
        return Classifier(Predictor(self.predictor.model, self.predictor.prompts, prior), recipe)

    @naming_arguments()
    def export(self, folder: str | Path, *, onnx: bool = False, with_backbone: bool = False) -> Path:
        """Write the classifier into a new folder: arrays, settings and a model card.

        Args:
            folder: The new folder.
            onnx: Whether to write an ONNX file.
            with_backbone: Whether to copy the CLIP model.
        """
        from .export import export

        export(self, Path(folder), onnx=onnx, with_backbone=with_backbone)
        return Path(folder)

    def batches(self, pictures: Iterable[NamedImage]) -> Iterator[_ImageBatch]:
        """Yield the images, decoded and transformed, in batches."""
        return batches(pictures, self.predictor.transform.resize_and_crop, self.recipe.decode_options)

    def _named_images(self, images: Images) -> Iterator[NamedImage]:
        """Yield the images with their names; folders are listed one after another."""
        if isinstance(images, str | Path) and Path(images).expanduser().is_dir():
            return _split_pages(_images_in(Path(images).expanduser(), []), self.recipe.decode_options)
        collection = collect_images(images, "images")
        return _split_pages(map(NamedImage, collection.names, collection.items), self.recipe.decode_options)

    def __repr__(self) -> str:
        recipe = self.recipe
        client = f" of {recipe.about['client']}" if recipe.about.get("client") else ""
        classes = counted(len(recipe.classes), "class")
        return f"<Classifier{client}: {classes}, {recipe.config.method} on {recipe.backbone.name}>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self._facts())
        return f"<table>{rows}</table>"

    def _facts(self) -> Iterator[tuple[str, str]]:
        recipe, shown = self.recipe, ", ".join(self.recipe.classes[:10])
        if recipe.about.get("client"):
            yield "classifier of", str(recipe.about["client"])
        yield "classes", shown + (f" and {len(recipe.classes) - 10} more" if len(recipe.classes) > 10 else "")
        yield "method", f"{recipe.config.method} on {recipe.backbone.name}"
        if self.threshold is not None:
            yield "abstains", f"below {self.threshold:.3f}: on {recipe.share:.0%} of its site's images"
