"""One client's trained model, with scikit-learn's words: `classes_`, `predict`, `predict_proba`, `score`."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..clip.encoder import ENCODE_BATCH, ClientImages, TokenStore
from ..clip.formats.hub import BUILT_IN
from ..clip.preprocess import ImageTransform
from ..data.dataset import Skipped
from ..data.in_memory import Images, LabelsOfImages, class_numbers, files_below, gather
from ..data.label_files import class_prior_of
from ..errors import ConfigError, DataError, ModelError, naming_arguments
from ..methods.prompted_model import ImageSide, PromptedModel, Prompts
from ..plurals import counted
from .answers import Answer, AnswerBatch, NamedImages, answers, batches, every_page
from .prior import Prior
from .recipe import MIX, SHARE, Confidence, Recipe

BATCH = ENCODE_BATCH  # as in a client's exam: the same images in the same order have the same bits there and here


class Predictor:
    """One client's prompts on a model that several clients may share."""

    def __init__(self, model: PromptedModel, prompts: Prompts, prior: Prior | None = None):
        self.model, self.prompts, self.prior = model, prompts, prior
        _refuse_misfits(model, prompts)

    @property
    def transform(self) -> ImageTransform:
        """What makes pixels of an image."""
        return self.model.encoder.clip.preprocess

    def log_probabilities(
        self, pixels: NDArray[np.uint8], rows: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """log p_c(x), (n, C), of images that are cut to size (n, 3, side, side), or of some rows of them.

        Through the prior, where there is one.
        """
        wanted = np.arange(len(pixels)) if rows is None else rows
        batches = (pixels[wanted[start : start + BATCH]] for start in range(0, len(wanted), BATCH))
        parts = [np.zeros((0, self.model.encoder.classes)), *map(self._of_batch, batches)]
        return np.concatenate(parts)

    def _of_batch(self, pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
        if self.prior is None:
            return self.logits(pixels).double().log_softmax(-1).numpy()
        return self.prior.answers(*self.seen(pixels))

    def seen(self, pixels: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What a prior answers from: log p of one batch by the model alone, (n, C), and plain features, (n, d)."""
        side = self._side(pixels)
        return side.logits(self.prompts).double().log_softmax(-1).numpy(), side.plain_rows()

    def logits(self, pixels: NDArray[np.uint8]) -> Tensor:
        """z of one batch by the model alone, (n, C), on the CPU."""
        return self._side(pixels).logits(self.prompts)

    def _side(self, pixels: NDArray[np.uint8]) -> ImageSide:
        images = ClientImages(TokenStore(self.model.encoder.clip, pixels), np.arange(len(pixels)))
        return ImageSide(self.model, images)


def _refuse_misfits(model: PromptedModel, prompts: Prompts) -> None:
    """Arrays of another model or method would fail later, and less clearly."""
    clip = model.encoder.clip
    for name, shape in model.method.shapes(clip, model.encoder.classes).items():
        if name not in prompts:
            raise ModelError(f"the prompts lack the array {name!r} that {model.method.config.method} needs")
        if prompts[name].shape != shape:
            found = prompts[name].shape
            raise ModelError(f"the prompt {name!r} has the shape {found}; with {clip.name} it must have {shape}")


class Classifier:
    """A frozen CLIP, one client's prompts and the names of the classes.

    It has what scikit-learn asks of a fitted classifier, and is fitted by a federation instead of `fit`: there are no
    parameters to get, set or search. `pickle` and `joblib` keep all but the CLIP model, which is found again by its
    name or path; for other machines there is `export`. Images are a folder, a file, a Pillow image, a uint8 array
    (n, height, width, 3) or (n, height, width), or a list of paths, Pillow images or arrays.

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
        """What scikit-learn from 1.6 on asks an estimator."""
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        target = TargetTags(required=False)
        return Tags("classifier", target, classifier_tags=ClassifierTags(), requires_fit=False)

    def fit(self, *_: object, **__: object) -> NoReturn:
        """Refused: scikit-learn asks whether there is a `fit`, and a federation has done it."""
        raise ConfigError("fit: a classifier is fitted by a federation; for another one use Federation(...).fit()")

    def __reduce__(self) -> tuple[Any, ...]:
        from .loading import restored

        encoder, name = self.predictor.model.encoder, self.predictor.model.encoder.clip.name
        where = name if name in BUILT_IN or not Path(name).exists() else str(Path(name).resolve())
        kept = (self.recipe.to_json(), dict(self.predictor.prompts), self.prior, where, encoder.arithmetic.precision)
        return restored, kept

    def __copy__(self) -> "Classifier":
        return Classifier(self.predictor, self.recipe)

    def __deepcopy__(self, memo: Mapping[int, Any]) -> "Classifier":
        """Copies share what none of them changes."""
        return Classifier(self.predictor, self.recipe)

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
        """From a folder of `fedcopl export`, or from a run's folder and the name of a client.

        `backbone` says where the CLIP model lies, when it is not known by name and not in the folder.
        """
        from .loading import load

        return load(Path(folder), client=client, backbone=backbone, device=device, precision=precision)

    @property
    def classes_(self) -> NDArray[np.str_]:
        """The names of the classes, in the order of the columns of `predict_proba`."""
        return np.array(self.recipe.classes)

    @property
    def threshold(self) -> float | None:
        """The probability below which it abstains in `answers`; None when nobody measured one."""
        return self.recipe.threshold

    @property
    def prior(self) -> Prior | None:
        """What it knows before it sees an image; None: nothing."""
        return self.predictor.prior

    @property
    def fingerprint(self) -> str:
        """The same for two classifiers that answer alike."""
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
        """The most probable class of each image, by name. It never abstains: for that there is `answers`."""
        names: NDArray[np.str_] = self.classes_[self.predict_log_proba(images).argmax(axis=1)]
        return names

    def predict_proba(self, images: Images) -> NDArray[np.float64]:
        """The probability of each class for each image, (n, C)."""
        probabilities: NDArray[np.float64] = np.exp(self.predict_log_proba(images))
        return probabilities

    def predict_log_proba(self, images: Images) -> NDArray[np.float64]:
        """The same as logarithms, so that very sure answers can still be told apart."""
        rows = [np.zeros((0, len(self.recipe.classes)))]
        for batch in self.batches(self._named(images)):
            for index, problem in batch.problems.items():
                raise DataError(f"{batch.names[index]}: {problem}")
            rows.append(self.predictor.log_probabilities(batch.pixels))
        return np.concatenate(rows)

    def score(self, images: Images, labels: LabelsOfImages) -> float:
        """The share of images whose label is right; labels are names of classes, or their numbers."""
        truth = class_numbers(labels, self.recipe.classes, "labels")
        predicted = self.predict_log_proba(images).argmax(axis=1)
        if len(truth) != len(predicted) or not len(truth):
            raise DataError(f"labels: {len(truth)} for {counted(len(predicted), 'image')}")
        return float((predicted == truth).mean())

    def answers(self, images: Images, *, top: int = 3, threshold: float | None = None) -> Iterator[Answer]:
        """One answer for each image, as they are worked out; it abstains below the threshold, its own unless given.

        Images that cannot be read have an answer too, which says why. A folder is never held in memory as a whole.
        """
        for batch in self.answer_batches(self._named(images), top=top, threshold=threshold):
            yield from batch

    def answer_batches(
        self, pictures: Iterable[NamedImages], *, top: int = 3, threshold: float | None = None
    ) -> Iterator[list[Answer]]:
        """The same for images of any origin, some hundred at a time."""
        limit = self.threshold if threshold is None else threshold
        for batch in self.batches(pictures):
            yield answers(batch, self.predictor.log_probabilities, self.recipe.classes, top, limit)

    def calibrated(self, images: Images, share: float = SHARE) -> "Classifier":
        """The same classifier, silent where it is less sure than of all but this share of these unlabelled images."""
        confidence = Confidence.of(self.predict_log_proba(images))
        confidence.threshold(share)
        return Classifier(self.predictor, replace(self.recipe, confidence=confidence, share=share))

    def with_prior(self, prior: str | Mapping[str, float], images: Images | None = None) -> "Classifier":
        """The same classifier for images in which the classes occur in another mix.

        "none": as at all sites together; "images": as in these images, found out without a label; or a share for each
        class, by its name. `threshold` stays what it was measured to be.
        """
        if isinstance(prior, Mapping):
            return self.with_class_prior(class_prior_of(prior, self.recipe.classes, "prior"))
        if prior == "none":
            return self if self.prior is None else self._answering_by(self.prior.pooled(), "of all sites together")
        if prior != "images":
            raise ConfigError(f'prior: must be "none", "images" or a share for each class, not {prior!r}')
        if images is None:
            raise ConfigError('prior: "images" needs the images: with_prior("images", images)')
        return self.fitted_to(self._named(images))

    def with_class_prior(self, class_prior: NDArray[np.float64]) -> "Classifier":
        """For images in which the classes occur in this mix, (C,)."""
        return self._answering_by(self._some_prior().with_class_prior(class_prior), "that somebody gave it")

    def fitted_to(self, pictures: Iterable[NamedImages]) -> "Classifier":
        """For the mix of classes that these images show. Those that cannot be read are passed over."""
        seen = [self.predictor.seen(batch.pixels) for batch in self.batches(pictures) if len(batch.pixels)]
        if not seen:
            raise DataError("there is no image to find the mix of classes from")
        log_probs, features = (np.concatenate(column) for column in zip(*seen, strict=True))
        return self._answering_by(self._some_prior().fitted_to(log_probs, features), "of other images")

    def _some_prior(self) -> Prior:
        return self.prior or Prior.of_nothing(len(self.recipe.classes))

    def _answering_by(self, prior: Prior, class_prior: str) -> "Classifier":
        """With another mix; what was measured with the site's own is no longer said of it without a word."""
        recipe = replace(self.recipe, about={**self.recipe.about, MIX: class_prior})
        return Classifier(Predictor(self.predictor.model, self.predictor.prompts, prior), recipe)

    @naming_arguments()
    def export(self, folder: str | Path, *, onnx: bool = False, with_backbone: bool = False) -> Path:
        """Write it into a new folder: arrays, settings and a model card, and if asked ONNX and the CLIP model."""
        from .export import export

        return export(self, Path(folder), onnx=onnx, with_backbone=with_backbone).folder

    def batches(self, pictures: Iterable[NamedImages]) -> Iterator[AnswerBatch]:
        """These images cut to its size, some hundred at a time."""
        return batches(pictures, self.predictor.transform.cut, self.recipe.reading)

    def _named(self, images: Images) -> Iterator[NamedImages]:
        return every_page(_named(images), self.recipe.reading)

    def __repr__(self) -> str:
        recipe = self.recipe
        whose = f" of {recipe.about['client']}" if recipe.about.get("client") else ""
        classes = counted(len(recipe.classes), "class")
        return f"<Classifier{whose}: {classes}, {recipe.config.method} on {recipe.backbone.name}>"

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
            yield "abstains", f"below {self.threshold:.3f}: {recipe.share:.0%} of its site's own images"


def _named(images: Images) -> Iterator[NamedImages]:
    """One image after the other; a folder is listed as it is read."""
    if isinstance(images, str | Path) and Path(images).expanduser().is_dir():
        return named_below(Path(images).expanduser(), [])
    pictures = gather(images, "images")
    return (NamedImages(name, item) for name, item in zip(pictures.names, pictures.items, strict=True))


def named_below(folder: Path, skipped: list[Skipped]) -> Iterator[NamedImages]:
    """The images below a folder, called by their path below it."""
    root = folder.resolve()
    return (NamedImages(file.relative_to(root).as_posix(), file) for file in files_below(root, skipped))
