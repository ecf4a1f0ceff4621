"""Cooperative priors as a whole: what a client answers, and what everybody learns from sums of such answers.

A `Reading` says how posteriors are made of text, prototypes, bias and mix:

    log p~_i = log softmax(h (g (s log p_i - tau/2 D_i^2) + b + log pi))        (pi: the site's mix; elsewhere t)

with s how sharp text is read, tau how far prototypes are believed, g how calm both are beside the mix, and h how sure
the answer is, which changes no answer; each is chosen by `evidence`.
Several readings can be asked for at once: their answers are stacked, so they cost numbers but no more exchanges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from . import FloatArray
from .balance import adapted, cooled, even_mix, is_balanced, predicted_mix, rebalanced
from .evidence import (
    FEWEST_PER_CLASS,
    SHARPNESSES,
    TEMPERINGS,
    choose_sharpness,
    choose_sureness,
    choose_tempering,
    common_mix,
    half_way,
    is_far_from_even,
    is_telling,
    is_uneven,
)
from .prototypes import ClassSums, FeatureSums, Prototypes, class_sums, distances, make_prototypes, with_prototypes
from .site_prior import SitePrior, fit_priors_of_sites, fit_site_prior, likelihood_ratios

FIRST_STEPS, STEPS = 10, 4  # of balance, at most: from nothing, and from a bias that is nearly right
CACHED = 2**17  # numbers of all readings that a site prior is fitted to at once, so that none leaves the cache
CLUSTERINGS = 5  # of the features, to see in what mix they come
ITERATIONS = 4  # of prototypes, and of a mix that is not of equal shares
MOST_EXCHANGES = (  # of `learn`, one sum over all sites each: a site answers no more of them
    (1 + FIRST_STEPS + 1)  # `_with_mix`, and then either more of it, or `_by_clusters`
    + max(ITERATIONS * (STEPS + 1), 1 + CLUSTERINGS + FIRST_STEPS + 1)
    + (1 + STEPS + 1)  # features, and how sharp text is read
    + (STEPS + 1 + ITERATIONS * (1 + STEPS + 1 + STEPS))  # `_with_prototypes`
    + (STEPS + 2)  # `_calmed`
)


@dataclass(frozen=True)
class Reading:
    """How everybody makes posteriors of what they see."""

    bias: FloatArray  # b, (C,)
    mix: FloatArray  # t, (C,)
    text: float = 1.0  # s
    tempering: float = 0.0  # tau
    calm: float = 1.0  # g
    sure: float = 1.0  # h

    def scaled(self, *, text: float = 1.0, calm: float = 1.0) -> "Reading":
        """Blunter by these factors; the bias is on the same scale."""
        return replace(self, text=self.text * text, calm=self.calm * calm, bias=self.bias * text * calm)


@dataclass(frozen=True)
class View:
    """What one client sees of its own images, or several of theirs, in stacked arrays. Never sent."""

    log_probs: FloatArray  # (n, C) by text; of K clients of equally many images (K, n, C)
    squared_distances: FloatArray  # the same to the prototypes; 0 before there are any

    @classmethod
    def of(cls, log_probs: FloatArray) -> "View":
        return cls(log_probs, np.zeros(log_probs.shape))

    @classmethod
    def of_sites(cls, views: Sequence["View"]) -> "View":
        """Several clients' in one; each of them is computed with the bits that it has alone."""
        pairs = ([view.log_probs for view in views], [view.squared_distances for view in views])
        return cls(*(stacked(arrays) for arrays in pairs))

    def by_site(self) -> list["View"]:
        """Each client's own again."""
        return [View(*own) for own in zip(self.log_probs, self.squared_distances, strict=True)]

    def scores(self, reading: Reading) -> FloatArray:
        """g (s log p - tau/2 D^2), (n, C)."""
        return reading.calm * with_prototypes(reading.text * self.log_probs, self.squared_distances, reading.tempering)

    def site_prior(self, reading: Reading) -> SitePrior:
        return fit_site_prior(self.scores(reading), reading.bias, reading.mix)

    def priors_of_sites(self, readings: Sequence[Reading]) -> list[list[SitePrior]]:
        """Of several clients the same under several readings, as many at a time as fit into a processor's cache."""
        at_once = max(1, CACHED // max(1, self.log_probs[0].size))
        parts = [readings[start : start + at_once] for start in range(0, len(readings), at_once)]
        found = [self._priors_of_sites(part) for part in parts]
        return [[prior for part in site for prior in part] for site in zip(*found, strict=True)]

    def _priors_of_sites(self, readings: Sequence[Reading]) -> list[list[SitePrior]]:
        ratios = [likelihood_ratios(self.scores(reading), reading.bias, reading.mix) for reading in readings]
        return fit_priors_of_sites(np.stack(ratios, axis=1), np.stack([reading.mix for reading in readings]))

    def posteriors(self, reading: Reading, mix: FloatArray) -> FloatArray:
        """log p~, (n, C), where the classes have this mix: the site's own, or t for images of anywhere.

        Of several clients mix may have a row for each.
        """
        rows = mix if mix.ndim == 1 else mix[:, None]
        return cooled(adapted(self.scores(reading), reading.bias, rows), reading.sure)


@dataclass(frozen=True)
class Beside:
    """What the priors put beside a model's opinion of some images: log p~ = log softmax(weight log p + offset)."""

    weight: float  # h g s
    offset: FloatArray  # h (-g tau/2 D^2 + b + log pi), (n, C)


@dataclass(frozen=True)
class Explained:
    """What a client tells of some readings, each with the site prior fitted to it."""

    evidence: FloatArray  # (J,) see `SitePrior.evidence`
    held: FloatArray  # (J, C) n_k pi_k
    confidence: FloatArray  # (J,) sum over the images of the probability of the likeliest class
    agreeing: float  # images that the first reading and prototypes alone take for the same class

    def __add__(self, other: "Explained") -> "Explained":
        return Explained(
            self.evidence + other.evidence,
            self.held + other.held,
            self.confidence + other.confidence,
            self.agreeing + other.agreeing,
        )


def predicted_by(view: View, readings: Sequence[Reading]) -> FloatArray:
    """m_k under each reading, (J, C); of several clients (K, J, C)."""
    mixes = [predicted_mix(view.scores(reading), reading.bias, reading.mix) for reading in readings]
    return np.stack(mixes, axis=-2)


def explained_by_sites(view: View, readings: Sequence[Reading]) -> list[Explained]:
    """What each of several clients tells."""
    priors, images = view.priors_of_sites(readings), view.log_probs.shape[1]
    mixes = [np.stack([site[number].mix for site in priors]) for number in range(len(readings))]
    posteriors = [view.posteriors(reading, mix) for reading, mix in zip(readings, mixes, strict=True)]
    confidence = np.stack([np.exp(rows.max(axis=2, initial=-np.inf)).sum(axis=1) for rows in posteriors], axis=1)
    by_text = view.posteriors(readings[0], readings[0].mix)
    agreeing = (by_text.argmax(axis=2) == view.squared_distances.argmin(axis=2)).sum(axis=1)
    return [
        Explained(
            np.array([prior.evidence for prior in site]), np.stack([images * prior.mix for prior in site]), sure, agree
        )
        for site, sure, agree in zip(priors, confidence, agreeing.astype(float).tolist(), strict=True)
    ]


def clustered_by(view: View, features: FloatArray, reading: Reading) -> tuple[ClassSums, FloatArray]:
    """As `shown_by_sites`, with the mix of all sites in the place of the site's own."""
    own = np.exp(view.posteriors(reading, reading.mix))
    return class_sums(features, own), own


def shown_by_sites(view: View, features: FloatArray, reading: Reading) -> tuple[ClassSums, FloatArray]:
    """Several clients' shares of the next prototypes, and the posteriors q behind them, which stay at home."""
    mixes = np.stack([prior.mix for [prior] in view.priors_of_sites([reading])])
    own = np.exp(view.posteriors(reading, mixes))
    return class_sums(features, own), own


def stacked(arrays: Sequence[FloatArray]) -> FloatArray:
    """Several clients' arrays in one; a single one is not copied."""
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)


def looked_at(view: View, features: FloatArray, prototypes: Prototypes, own: FloatArray) -> View:
    """The same images beside the new prototypes, each without its own share in them."""
    return replace(view, squared_distances=distances(prototypes, features, own))


class PriorSums(Protocol):
    """The sums over all clients, however they are made."""

    def features(self) -> FeatureSums: ...
    def predicted(self, readings: Sequence[Reading]) -> FloatArray: ...
    def explained(self, readings: Sequence[Reading]) -> Explained: ...
    def classes_of(self, reading: Reading) -> ClassSums: ...
    def clusters_of(self, reading: Reading) -> ClassSums: ...
    def look_at(self, prototypes: Prototypes) -> None: ...


@dataclass(frozen=True)
class Learned:
    """What everybody knows in the end; with a site's own mix it answers for any image."""

    reading: Reading
    prototypes: Prototypes | None  # None: text alone does better
    is_uneven: bool  # whether the classes were found not to be equally common over all sites

    def to_arrays(self) -> dict[str, FloatArray]:
        """Fit to be sent and stored."""
        reading = self.reading
        scalars = [reading.text, reading.tempering, reading.calm, reading.sure, self.is_uneven]
        made = {} if self.prototypes is None else vars(self.prototypes)
        return {"bias": reading.bias, "mix": reading.mix, "numbers": np.array(scalars, np.float64), **made}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, FloatArray]) -> "Learned":
        """What `to_arrays` gave."""
        *scalars, is_uneven = arrays["numbers"].tolist()
        made = [arrays[name] for name in ("images", "total", "whiten") if name in arrays]
        reading = Reading(arrays["bias"], arrays["mix"], *scalars)
        return cls(reading, Prototypes(*made) if made else None, bool(is_uneven))

    def answers(self, log_probs: FloatArray, features: FloatArray, mix: FloatArray) -> FloatArray:
        """log p~ of new images, (n, C): nothing of it needs other images. mix is the site's, or `reading.mix`."""
        return self.view(log_probs, features).posteriors(self.reading, mix)

    def beside(self, squared_distances: FloatArray, mix: FloatArray) -> Beside:
        """What is known of images before a model is asked: its answers are softmax(weight log p + offset)."""
        reading = self.reading
        known = View(np.zeros(squared_distances.shape), squared_distances).scores(reading) + reading.bias + np.log(mix)
        return Beside(reading.sure * reading.calm * reading.text, reading.sure * known)

    def view(self, log_probs: FloatArray, features: FloatArray) -> View:
        """New images, which no prototype was made of, beside the prototypes."""
        view = View.of(log_probs)
        if self.prototypes is None:
            return view
        return replace(view, squared_distances=distances(self.prototypes, features))


def learn(sites: PriorSums, classes: int, *, known_mix: FloatArray | None = None, prototypes: bool = True) -> Learned:
    """Everything, from sums alone. known_mix is the mix of the classes over all sites, where somebody knows it."""
    common = _with_mix(sites, classes, known_mix)
    reading, is_odd, is_tailed = common.reading, common.is_odd, False
    sums = sites.features() if prototypes else None  # nobody is asked for what is not used
    sums = None if sums is None or sums.images < FEWEST_PER_CLASS * classes else sums
    if sums is not None and known_mix is None and not is_odd:
        reading, is_tailed = _by_clusters(sites, reading, sums)
    if common.unexplained is not None and not is_tailed:
        reading = _balanced(sites, [replace(reading, mix=half_way(common.unexplained))])[0]
    readings = _balanced(sites, [reading.scaled(text=sharpness) for sharpness in SHARPNESSES])
    found = sites.explained(readings)
    sharpness = choose_sharpness(found.evidence, float(found.held[0].sum()))
    text = readings[0 if sharpness is None else SHARPNESSES.index(sharpness)]
    if sums is None:
        return Learned(text, None, is_odd)
    reading, made = _with_prototypes(sites, text, sums, is_odd)
    reading = text if made is None else _calmed(sites, text, reading, sums.images)
    return Learned(reading, made, is_odd or is_tailed)


def learn_balance(sites: PriorSums, classes: int, steps: int, known_mix: FloatArray | None = None) -> Learned:
    """Only the model's own lean, in so many exchanges: for where each one is paid for with noise."""
    start = Reading(np.zeros(classes), even_mix(classes) if known_mix is None else known_mix)
    return Learned(_balanced(sites, [start], steps)[0], None, False)


def learn_nothing(classes: int) -> Learned:
    """Where only the site's own prior is wanted."""
    return Learned(Reading(np.zeros(classes), even_mix(classes)), None, False)


@dataclass(frozen=True)
class CommonMix:
    """What the answers of all sites say of the mix of all images together."""

    reading: Reading  # of text, balanced to it
    is_odd: bool  # whether by evidence it is not of equal shares
    unexplained: FloatArray | None = None  # what the model predicts, where no evidence says whether that is a lean


def _with_mix(sites: PriorSums, classes: int, known: FloatArray | None) -> CommonMix:
    """A balanced reading of text: to the mix that is known, to equal shares, or to the one that the sites show."""
    start = Reading(np.zeros(classes), even_mix(classes) if known is None else known)
    if known is not None:
        return CommonMix(_balanced(sites, [start], FIRST_STEPS)[0], False)
    own = replace(start, mix=common_mix(sites.predicted([start])[0]))
    even, own = _balanced(sites, [start, own], FIRST_STEPS)
    found = sites.explained([even, own])
    images = float(found.held[0].sum())
    if not is_uneven(float(found.evidence[0]), float(found.evidence[1]), images):
        return CommonMix(even, False, None if is_telling(float(found.evidence.max()), images) else own.mix)
    held = found.held[1]
    for _ in range(ITERATIONS):
        own = _balanced(sites, [replace(own, mix=common_mix(held))])[0]
        held = sites.explained([own]).held[0]
    return CommonMix(own, True)


def _by_clusters(sites: PriorSums, even: Reading, sums: FeatureSums) -> tuple[Reading, bool]:
    """A reading balanced to the mix in which the images cluster, where that is far from equal shares; else as it is.

    Where sites do not differ, posteriors cannot tell a lean of the model from classes that are not equally common. How
    the features cluster can: a mixture of Gaussians that starts from text, half balanced, and has its own weights.
    """
    found = sites.clusters_of(replace(even, bias=even.bias / 2))
    for _ in range(CLUSTERINGS):
        mix = common_mix(found.images)
        sites.look_at(make_prototypes(sums, found))
        found = sites.clusters_of(Reading(np.zeros_like(mix), mix, tempering=1.0))
    mix = common_mix(found.images)
    if not is_far_from_even(mix, sums.images):
        return even, False
    own = _balanced(sites, [replace(even, mix=mix)], FIRST_STEPS)[0]
    by_even, by_own = sites.explained([even, own]).evidence
    contradicted = by_own < by_even and is_telling(float(by_even), sums.images)
    return (even, False) if contradicted else (own, True)


def _with_prototypes(
    sites: PriorSums, text: Reading, sums: FeatureSums, is_odd: bool
) -> tuple[Reading, Prototypes | None]:
    """The reading with prototypes that were made of it, of those anew, and so on; None where they explain no more."""
    reading = text
    for iteration in range(ITERATIONS):
        prototypes = make_prototypes(sums, sites.classes_of(reading))
        sites.look_at(prototypes)
        if iteration == 0:
            tried = _balanced(sites, [replace(text, tempering=tempering) for tempering in TEMPERINGS])
            tempering = choose_tempering(sites.explained(tried).evidence, sums.images)
            reading = tried[TEMPERINGS.index(tempering)]
            if tempering == 0:
                return text, None
        reading = _balanced(sites, [reading])[0]
        if is_odd:
            mix = common_mix(sites.explained([reading]).held[0])
            reading = _balanced(sites, [replace(reading, mix=mix)])[0]
    return reading, prototypes


def _calmed(sites: PriorSums, text: Reading, reading: Reading, images: float) -> Reading:
    """The same reading, no surer of itself than the sites bear out, or else text and prototypes together."""
    readings = _balanced(sites, [reading.scaled(calm=sharpness) for sharpness in SHARPNESSES])
    sharpness = choose_sharpness(sites.explained(readings).evidence, images)
    if sharpness is not None:
        return readings[SHARPNESSES.index(sharpness)]
    # Blunter likelihoods would leave all to site priors of which nobody can tell whether they are right.
    found = sites.explained([text, *(replace(reading, sure=sharpness) for sharpness in SHARPNESSES)])
    return replace(reading, sure=choose_sureness(found.confidence[1:] / images, found.agreeing / images))


def _balanced(sites: PriorSums, readings: Sequence[Reading], steps: int = STEPS) -> list[Reading]:
    """The readings with a bias under which the classes are predicted in their mix."""
    for _ in range(steps):
        predicted = sites.predicted(readings)
        if all(is_balanced(sums, reading.mix) for sums, reading in zip(predicted, readings, strict=True)):
            break
        readings = [
            replace(reading, bias=rebalanced(reading.bias, sums, reading.mix))
            for sums, reading in zip(predicted, readings, strict=True)
        ]
    return list(readings)
