"""The description of a classifier without its arrays: the content of config.json."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..clip.known_models import BUILT_IN, RELEASES
from ..config import RunConfig
from ..data.dataset import clean_class_names
from ..data.decoding import DecodeOptions
from ..errors import DataError, FedCoPLError, ModelError
from ..files import parse_json, read_limited

SHARE = 0.05  # default share of a site's images on which its classifier abstains
_LEVELS = np.linspace(0, 1, 101)


@dataclass(frozen=True)
class Confidence:
    """The distribution of a classifier's confidence on the images of its site."""

    percentiles: tuple[float, ...]  # of the highest probability: minimum, 1 %, ..., 99 %, maximum
    images: int  # number of images

    @classmethod
    def of(cls, log_probabilities: NDArray[np.float64]) -> "Confidence":
        """Measure the confidence from log p, (n, C), of the site's unlabelled images."""
        if not len(log_probabilities):
            raise DataError("there are no images to measure confidence on")
        highest = np.exp(log_probabilities.max(axis=1))
        # With "lower", at most the share of the images has a confidence below its quantile.
        return cls(tuple(np.quantile(highest, _LEVELS, method="lower").tolist()), len(highest))

    def threshold(self, share: float = SHARE) -> float:
        """Return the confidence below which the classifier abstains on at most this share of the site's images.

        The share is rounded down to a whole percent.
        """
        if not 0 <= share <= 1:
            raise DataError(f"the share of images to abstain on must be between 0 and 1, not {share}")
        return self.percentiles[int(share * 100 + 1e-9)]


def _confidence(written: object) -> Confidence | None:
    """Parse the confidence in a classifier's config.json; ValueError if it is invalid."""
    match written:
        case None:
            return None
        case {"percentiles": [*percentiles], "images": int(images)}:
            numbers = [value for value in percentiles if isinstance(value, int | float) and 0 <= value <= 1]
            if len(numbers) == len(percentiles) == len(_LEVELS) and numbers == sorted(numbers) and images > 0:
                return Confidence(tuple(map(float, percentiles)), images)
    raise ValueError('"percentiles" must be 101 increasing probabilities, and "images" a number of at least 1')


_KIND, _FORMAT = "fedcopl-classifier", 1
CONFIG, ARRAYS, BACKBONE = "config.json", "model.safetensors", "backbone"
CLASS_PRIOR = "class_prior"  # key in `about` of the origin of a class prior that is not the site's
_MODEL_SETTINGS = ("visual_prompts", "visual_depth", "text_prompts", "activation")  # settings that define the model


@dataclass(frozen=True)
class TrainedOn:
    """The frozen CLIP with which a classifier was trained."""

    name: str  # of a known model, or the last part of a path, which may be private
    fingerprint: str  # `clip.frozen_clip.fingerprint`
    included: bool = False  # whether its files are in the folder of the classifier

    @classmethod
    def of(cls, backbone: str, fingerprint: str) -> "TrainedOn":
        """Describe a model by the name of a known model or by the last part of its path."""
        is_known = backbone in BUILT_IN or backbone in RELEASES
        return cls(backbone if is_known else Path(backbone).name, fingerprint)

    @property
    def is_known(self) -> bool:
        """True if the name identifies public weights."""
        return self.name in BUILT_IN or self.name in RELEASES


@dataclass(frozen=True)
class Recipe:
    """The settings with which a classifier is built from its arrays, and facts about its training."""

    classes: tuple[str, ...]
    template: str
    config: RunConfig  # only the method, its options, `_MODEL_SETTINGS` and the decode options are used
    backbone: TrainedOn
    confidence: Confidence | None = None
    share: float = SHARE  # of the site's images on which it abstains
    about: Mapping[str, Any] = field(default_factory=dict)  # for the model card: client, training, accuracy

    @property
    def decode_options(self) -> DecodeOptions:
        """The options with which image files are decoded, as in training."""
        return DecodeOptions.of(self.config.data)

    @property
    def threshold(self) -> float | None:
        """The probability below which it abstains; None without a measured confidence."""
        return None if self.confidence is None else self.confidence.threshold(self.share)

    def to_json(self) -> str:
        """Return the content of config.json."""
        model = self.config.model.model_dump()
        content = {
            "model_type": _KIND,
            "format": _FORMAT,
            "classes": self.classes,
            "template": self.template,
            "method": self.config.method,
            "options": self.config.options,
            "model": {name: model[name] for name in _MODEL_SETTINGS},
            "decode_options": self.decode_options.non_defaults(),
            "backbone": vars(self.backbone),
            "abstain": {"share": self.share, "below": self.threshold},
            "confidence": None if self.confidence is None else vars(self.confidence),
            "about": self.about,
        }
        lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items())
        return f"{{\n{lines}\n}}\n"

    @classmethod
    def read(cls, file: Path) -> "Recipe":
        """Read config.json.

        Raises:
            ModelError: A part of the file is invalid.
        """
        try:
            return cls.parse(read_limited(file).decode("utf-8"), str(file))
        except (OSError, ValueError) as error:
            raise ModelError(f"{file}: cannot be read: {error}") from error

    @classmethod
    def parse(cls, text: str, origin: str) -> "Recipe":
        """Parse the result of `to_json`; errors name the origin of the text."""
        try:
            written = parse_json(text)
        except ValueError as error:
            raise ModelError(f"{origin}: cannot be read: {error}") from error
        if not isinstance(written, dict) or written.get("model_type") != _KIND:
            raise ModelError(f"{origin}: does not describe a classifier of fedcopl")
        if (version := written.get("format")) != _FORMAT:
            raise ModelError(f"{origin}: has the format {version!r}; this version of fedcopl reads format {_FORMAT}")

        def parse_field(name: str, parse: Callable[[Any], Any]) -> Any:
            if name not in written:
                raise ModelError(f"{origin}: {name!r} is missing")
            try:
                return parse(written[name])
            except (ValueError, TypeError, KeyError, AttributeError, FedCoPLError) as error:
                raise ModelError(f"{origin}: {name!r} cannot be used: {error}") from error

        return cls(
            parse_field("classes", _classes),
            parse_field("template", _text),
            parse_field("method", lambda method: _config(written)),
            parse_field("backbone", _backbone),
            parse_field("confidence", _confidence),
            parse_field("abstain", lambda abstain: _share(abstain["share"])),
            parse_field("about", dict),
        )


def is_exported(folder: Path) -> bool:
    """Return whether a folder has a classifier, valid or not."""
    try:
        content = parse_json(read_limited(folder / CONFIG))
    except (OSError, ValueError):
        return (folder / CONFIG).exists() and (folder / ARRAYS).exists()
    return isinstance(content, dict) and content.get("model_type") == _KIND


def _classes(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError("it must be a list of at least one name")
    return clean_class_names(names, "classes")


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError("it must be a text")
    return text


def _share(share: Any) -> float:
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ValueError("it must be a number between 0 and 1")
    return float(share)


def _backbone(written: Any) -> TrainedOn:
    return TrainedOn(_text(written["name"]), _text(written["fingerprint"]), written["included"] is True)


def _config(written: Mapping[str, Any]) -> RunConfig:
    """Parse the settings of a config.json that are used for prediction."""
    model = {name: written["model"][name] for name in _MODEL_SETTINGS}
    data = written["decode_options"]
    settings = {"method": written["method"], "options": written["options"], "model": model, "data": data}
    return RunConfig.from_mapping(settings, "settings")
