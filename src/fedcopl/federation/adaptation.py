"""The priors, from both sides: sums that a client tells, and everything that the server learns from sums alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..algorithm import FloatArray
from ..algorithm.priors import (
    Explained,
    Learned,
    Reading,
    View,
    explained_by,
    learn,
    learn_balance,
    learn_nothing,
    looked_at,
    predicted_by,
    shown_by,
)
from ..algorithm.prototypes import ClassSums, FeatureSums, Prototypes, feature_sums
from ..config import RunConfig
from ..errors import CannotAnswer
from ..messages import Adapt
from ..privacy.accountant import NOISY_STEPS

LARGEST_SQUARE = 256  # d up to which the spread is told as a d x d matrix; beyond, only its size


@dataclass(frozen=True)
class PriorState:
    """What a client keeps of the priors. Never sent."""

    view: View | None = None  # its images, while they are looked at
    shown: FloatArray | None = None  # q, the share of each image in the last prototypes
    learned: Learned | None = None
    mix: FloatArray | None = None  # pi, in what mix it holds the classes

    def answers(self, log_probs: FloatArray, features: FloatArray) -> FloatArray:
        """log p~ of new images, where the priors are known; else as they are."""
        if self.learned is None or self.mix is None:
            return log_probs
        return self.learned.answers(log_probs, features, self.mix)

    def posteriors(self) -> FloatArray:
        """log p~ of its own images, each judged by prototypes without itself."""
        assert self.view is not None and self.learned is not None and self.mix is not None
        return self.view.posteriors(self.learned.reading, self.mix)


def answer(
    ask: Adapt, prior: PriorState, look: Callable[[], FloatArray], features: Callable[[], FloatArray], site: bool
) -> tuple[FloatArray | None, PriorState]:
    """The sums that are asked for, and what to keep; `look` labels all images by the model of the question."""
    view = View.of(look()) if ask.step == 0 else prior.view
    if view is None:
        raise CannotAnswer("asked to go on with priors that it has not begun with")
    if ask.prototypes:
        own = np.zeros(view.log_probs.shape) if prior.shown is None else prior.shown
        view = looked_at(view, features(), Prototypes(**ask.prototypes), own)
    prior, readings = replace(prior, view=view), [reading_from(one) for one in ask.readings]
    match ask.wanted:
        case "features":
            return flat_features(feature_sums(features(), full=ask.width <= LARGEST_SQUARE)), prior
        case "predicted":
            return predicted_by(view, readings).ravel(), prior
        case "explained":
            return flat_explained(explained_by(view, readings)), prior
        case "classes":
            sums, shown = shown_by(view, features(), readings[0])
            return np.concatenate([sums.images, sums.total.ravel()]), replace(prior, shown=shown)
        case "keep":
            learned = Learned.from_arrays(ask.readings[0])
            mix = view.site_prior(learned.reading).mix if site else learned.reading.mix
            return None, replace(prior, learned=learned, mix=mix, shown=None)
    raise CannotAnswer(f"asked for sums of no known kind: {ask.wanted!r:.40}")


def size_of(ask: Adapt, classes: int) -> int:
    """How many numbers the answer has."""
    readings = len(ask.readings)
    square = ask.width**2 if ask.width <= LARGEST_SQUARE else 1
    return {
        "features": 1 + ask.width + square,
        "predicted": readings * classes,
        "explained": readings * (classes + 2) + 1,
        "classes": classes * (1 + ask.width),
    }.get(ask.wanted, 0)


def flat_features(sums: FeatureSums) -> FloatArray:
    return np.concatenate([[sums.images], sums.total, np.ravel(sums.square)])


def flat_explained(sums: Explained) -> FloatArray:
    return np.concatenate([sums.evidence, sums.held.ravel(), sums.confidence, [sums.agreeing]])


def reading_arrays(reading: Reading) -> dict[str, FloatArray]:
    return Learned(reading, None, False).to_arrays()


def reading_from(arrays: Mapping[str, FloatArray]) -> Reading:
    return Learned.from_arrays(arrays).reading


@dataclass
class AskedSums:
    """The sums over all clients, one exchange each. Implements `algorithm.priors.PriorSums`."""

    total: Callable[[Adapt], FloatArray]  # asks all clients, and adds up
    first: Adapt  # round, model and width of all questions
    classes: int
    _step: int = 0
    _prototypes: Mapping[str, FloatArray] = field(default_factory=dict)

    def features(self) -> FeatureSums:
        sums = self._ask("features")
        width = self.first.width
        square = sums[1 + width :]
        spread = square.reshape(width, width) if width <= LARGEST_SQUARE else square[0]
        return FeatureSums(float(sums[0]), sums[1 : 1 + width], np.asarray(spread))

    def predicted(self, readings: Sequence[Reading]) -> FloatArray:
        return self._ask("predicted", readings).reshape(len(readings), self.classes)

    def explained(self, readings: Sequence[Reading]) -> Explained:
        sums, many = self._ask("explained", readings), len(readings)
        held = sums[many : many * (self.classes + 1)].reshape(many, self.classes)
        return Explained(sums[:many], held, sums[many * (self.classes + 1) : -1], float(sums[-1]))

    def classes_of(self, reading: Reading) -> ClassSums:
        sums = self._ask("classes", [reading])
        return ClassSums(sums[: self.classes], sums[self.classes :].reshape(self.classes, -1))

    def look_at(self, prototypes: Prototypes) -> None:
        """With the next question."""
        self._prototypes = vars(prototypes)

    def next(self, wanted: str, readings: Sequence[Mapping[str, FloatArray]]) -> Adapt:
        """The next question; prototypes are sent once."""
        ask = replace(
            self.first, step=self._step, wanted=wanted, readings=tuple(readings), prototypes=dict(self._prototypes)
        )
        self._step, self._prototypes = self._step + 1, {}
        return ask

    def kept(self, learned: Learned) -> Adapt:
        """The last question, the same for all: it says what was learnt."""
        ask = replace(self.first, step=self._step, wanted="keep", readings=(learned.to_arrays(),))
        return replace(ask, prototypes=dict(self._prototypes))

    def _ask(self, wanted: str, readings: Sequence[Reading] = ()) -> FloatArray:
        return self.total(self.next(wanted, [reading_arrays(reading) for reading in readings]))


def learn_from(sums: AskedSums, config: RunConfig) -> Learned:
    """What the settings want to be known."""
    if not config.priors.balance:
        return learn_nothing(sums.classes)
    if config.privacy.noise:
        return learn_balance(sums, sums.classes, NOISY_STEPS)
    return learn(sums, sums.classes, prototypes=config.priors.prototypes)
