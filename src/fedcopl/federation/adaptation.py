"""The priors, from both sides: sums that a client tells, and everything that the server learns from sums alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ..algorithm import FloatArray, IntArray
from ..algorithm.priors import (
    MOST_EXCHANGES,
    Beside,
    Explained,
    Learned,
    Reading,
    View,
    clustered_by,
    explained_by_sites,
    learn,
    learn_balance,
    learn_nothing,
    looked_at,
    predicted_by,
    shown_by_sites,
    stacked,
)
from ..algorithm.prototypes import ClassSums, FeatureSums, Prototypes, feature_sums
from ..config import RunConfig
from ..errors import CannotAnswer
from ..messages import Adapt
from ..privacy.accountant import NOISY_STEPS

ALL = slice(None)
LARGEST_SQUARE = 256  # d up to which the spread is told as a d x d matrix; beyond, only its size


@dataclass(frozen=True)
class PriorState:
    """What a client keeps of the priors. Never sent."""

    view: View | None = None  # its images as plain CLIP sees them, until they are labelled for the first time
    shown: FloatArray | None = None  # q, the share of each image in the last prototypes
    learned: Learned | None = None
    mix: FloatArray | None = None  # pi, in what mix it holds the classes
    distances: FloatArray | None = None  # D^2 of its own images to prototypes without themselves, (n, C)

    def answers(self, log_probs: FloatArray, features: FloatArray) -> FloatArray:
        """log p~ of new images, where the priors are known; else as they are."""
        if self.learned is None or self.mix is None:
            return log_probs
        return self.learned.answers(log_probs, features, self.mix)

    def of_own(self, log_probs: FloatArray, index: IntArray | slice = ALL) -> FloatArray:
        """log p~ of all or some of its own images, each judged by prototypes without itself."""
        if self.learned is None or self.mix is None or self.distances is None:
            return log_probs
        return View(log_probs, self.distances[index]).posteriors(self.learned.reading, self.mix)

    def beside(self, index: IntArray) -> Beside | None:
        """What is known of some of its own images before a model is asked; None: nothing."""
        if self.learned is None or self.mix is None or self.distances is None:
            return None
        return self.learned.beside(self.distances[index], self.mix)


SeesImages = Callable[[], FloatArray]
"""Computes something of all of a client's images, when it is wanted."""


def answer(
    ask: Adapt, prior: PriorState, look: SeesImages, features: SeesImages, site: bool, least_images: int = 0
) -> tuple[FloatArray | None, PriorState]:
    """The sums that are asked for, and what to keep; `look` labels all images by the model of the question.

    Of a class with fewer than `least_images`, nothing is told of what they look like.
    """
    if ask.step == 0:
        prior = PriorState(View.of(look()))
    team = TeamPriors.of([prior])
    if ask.wanted == "keep":
        return None, kept_together(ask, team, [features], site)[0]
    sums, team = answer_together(ask, team, [features], least_images)
    [own] = team.by_client()
    return sums[0], replace(prior, view=own.view, shown=own.shown)


@dataclass(frozen=True)
class TeamPriors:
    """What several clients of equally many images keep while priors are learnt, in stacked arrays."""

    view: View
    shown: FloatArray | None = None  # (K, n, C)

    @classmethod
    def of(cls, priors: Sequence[PriorState]) -> "TeamPriors":
        views = [prior.view for prior in priors if prior.view is not None]
        if len(views) < len(priors):
            raise CannotAnswer("asked to go on with priors that it has not begun with")
        nothing = np.zeros(views[0].log_probs.shape)
        shown = [nothing if prior.shown is None else prior.shown for prior in priors]
        has_shown = any(prior.shown is not None for prior in priors)
        return cls(View.of_sites(views), stacked(shown) if has_shown else None)

    def by_client(self) -> list[PriorState]:
        """Each one's own again."""
        views = self.view.by_site()
        shown = [None] * len(views) if self.shown is None else [*self.shown]
        return [PriorState(*own) for own in zip(views, shown, strict=True)]


def answer_together(
    ask: Adapt, team: TeamPriors, features: Sequence[SeesImages], least_images: int = 0
) -> tuple[FloatArray, TeamPriors]:
    """The sums of each of several clients, a row each, and what they keep: in a few large steps.

    Each of them answers as it does alone, to the bit.
    """
    seen = _Seen(features)
    team = _shown_prototypes(ask, team, seen)
    readings = [reading_from(one) for one in ask.readings]
    match ask.wanted:
        case "features":
            return np.stack([*_told_features(ask, seen, least_images)]), team
        case "predicted":
            return predicted_by(team.view, readings).reshape(len(features), -1), team
        case "explained":
            return np.stack([flat_explained(own) for own in explained_by_sites(team.view, readings)]), team
        case "classes" | "clusters":
            by = shown_by_sites if ask.wanted == "classes" else clustered_by
            sums, shown = by(team.view, seen.stacked, readings[0])
            rows = np.concatenate([sums.images, sums.total.reshape(len(features), -1)], axis=1)
            return rows, replace(team, shown=shown)
    raise CannotAnswer(f"asked for sums of no known kind: {ask.wanted!r:.40}")


def kept_together(ask: Adapt, team: TeamPriors, features: Sequence[SeesImages], site: bool) -> list[PriorState]:
    """What each of several clients keeps of what was learnt."""
    seen, learned = _Seen(features), Learned.from_arrays(ask.readings[0])
    view = _shown_prototypes(ask, team, seen).view
    if ask.step == 0:  # it was not there when this was learnt
        view = learned.view(view.log_probs, seen.stacked)
    return [*_kept(view, learned, site)]


def _shown_prototypes(ask: Adapt, team: TeamPriors, seen: "_Seen") -> TeamPriors:
    """Their images beside the prototypes that come with a question, if any do."""
    if not ask.prototypes:
        return team
    own = np.zeros(team.view.log_probs.shape) if team.shown is None else team.shown
    return replace(team, view=looked_at(team.view, seen.stacked, Prototypes(**ask.prototypes), own))


@dataclass
class _Seen:
    """What plain CLIP sees in several clients' images, where it is wanted."""

    each: Sequence[SeesImages]

    @cached_property
    def stacked(self) -> FloatArray:
        return stacked([features() for features in self.each])


def _told_features(ask: Adapt, seen: _Seen, least_images: int) -> Iterator[FloatArray]:
    for features in seen.stacked:
        if len(features) < least_images:
            raise CannotAnswer(f"it has fewer than {least_images} images: their features would be theirs alone")
        yield flat_features(feature_sums(features, full=ask.width <= LARGEST_SQUARE))


def _kept(view: View, learned: Learned, site: bool) -> Iterator[PriorState]:
    """What is known from now on, with each client's own mix if that is wanted."""
    priors = view.priors_of_sites([learned.reading]) if site else [[]] * len(view.log_probs)
    for own, prior in zip(view.by_site(), priors, strict=True):
        mix = prior[0].mix if site else learned.reading.mix
        yield PriorState(own, None, learned, mix, own.squared_distances)


def without_small(sums: ClassSums, shown: FloatArray, least_images: int) -> tuple[ClassSums, FloatArray]:
    """Nothing of classes with fewer images than that: their sum would show what a few images look like."""
    enough = sums.images >= least_images
    return ClassSums(sums.images * enough, sums.total * enough[:, None]), shown * enough


def size_of(ask: Adapt, classes: int) -> int:
    """How many numbers the answer has."""
    readings = len(ask.readings)
    square = ask.width**2 if ask.width <= LARGEST_SQUARE else 1
    return {
        "features": 1 + ask.width + square,
        "predicted": readings * classes,
        "explained": readings * (classes + 2) + 1,
        "classes": classes * (1 + ask.width),
        "clusters": classes * (1 + ask.width),
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
        return self._class_sums("classes", reading)

    def clusters_of(self, reading: Reading) -> ClassSums:
        return self._class_sums("clusters", reading)

    def _class_sums(self, wanted: str, reading: Reading) -> ClassSums:
        sums = self._ask(wanted, [reading])
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
        return replace(keep(self.first, learned), step=self._step, prototypes=dict(self._prototypes))

    def _ask(self, wanted: str, readings: Sequence[Reading] = ()) -> FloatArray:
        return self.total(self.next(wanted, [reading_arrays(reading) for reading in readings]))


def keep(first: Adapt, learned: Learned) -> Adapt:
    """What was learnt; at step 0 for a client that was not there then, and looks at its images now."""
    return replace(first, wanted="keep", readings=(learned.to_arrays(),))


def most_steps(config: RunConfig) -> int:
    """How many questions of the priors come one after the other, at most; the last one says what was learnt."""
    if not config.priors.balance:
        return 1
    return 1 + (NOISY_STEPS if config.privacy.noise else MOST_EXCHANGES)


def learn_from(sums: AskedSums, config: RunConfig, known_mix: FloatArray | None = None) -> Learned:
    """What the settings want to be known; known_mix is that of the classes over all sites, where somebody said it."""
    if not config.priors.balance:
        return learn_nothing(sums.classes)
    if config.privacy.noise:
        return learn_balance(sums, sums.classes, NOISY_STEPS, known_mix)
    return learn(sums, sums.classes, known_mix=known_mix, prototypes=config.priors.prototypes)
