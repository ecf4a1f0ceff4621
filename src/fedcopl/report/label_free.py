"""The results of a run without labelled test images: class priors, confidence, estimated accuracy and rollbacks."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..algorithm.accuracy_from_sample import AccuracyEstimate
from ..errors import RunFolderError
from ..files import write_text
from ..run.folder import file_name
from ..run.pseudo_labels import LastLabels
from ..run.record import Outcome
from .narrative import has_priors
from .tables import estimated_priors

UNSURE = 0.5  # probability of the predicted class below which an image counts as unsure
REVIEWED = 20  # images to confirm for a first estimate of the accuracy
_NAMED = 3  # largest classes of a prior that are named
_LEAST = 0.005  # share of a class that is named
_LISTED = 10  # clients whose prior is printed on the terminal
_WORSE, _MOST, _BETTER = 6.0, 0.35, 0.5  # error of calibrated confidence, see `label_free_accuracy`


@dataclass(frozen=True)
class ReviewedClient:
    """The accuracy of one client's labels by the answers of its expert, with a 95 % interval."""

    client: str
    share: float
    low: float
    high: float
    looked_at: int  # images of the random sample that count


def write_review(folder: Path, client: str, estimate: AccuracyEstimate) -> None:
    """Write the estimate of a review into the run's folder, where the report reads it."""
    kept = ReviewedClient(client, estimate.share, estimate.low, estimate.high, estimate.looked_at)
    write_text(folder / "review" / f"{file_name(client)}.json", json.dumps(asdict(kept)) + "\n")


def read_reviews(folder: Path) -> list[ReviewedClient]:
    """Return the estimates of all reviews in the run's folder, by client."""
    found = []
    for file in sorted((folder / "review").glob("*.json")):
        try:
            kept = ReviewedClient(**json.loads(file.read_bytes()))
            if not 0 <= kept.low <= kept.share <= kept.high <= 1:
                raise ValueError("it is no share with its interval")
        except (OSError, ValueError, TypeError) as error:
            raise RunFolderError(
                f"{file}: is damaged: {error}; write it again with: fedcopl review {folder} --score"
            ) from error
        found.append(kept)
    return found


def label_free_accuracy(confidence: float) -> tuple[float, float, float]:
    """Return the accuracy expected from the mean confidence of calibrated posteriors, and a range around it.

    The range covers how far calibrated confidence was from the accuracy on frozen CLIP features of three public data
    sets (docs/results-and-review.md): errors up to seven times the expected ones, at most 35 points more, and down to
    half of them.
    """
    error = 1 - confidence
    return confidence, max(0.0, confidence - min(_WORSE * error, _MOST)), confidence + _BETTER * error


@dataclass(frozen=True)
class _LabelFreeClient:
    """A client's estimated class prior and confidence."""

    name: str
    images: int | None
    prior: Sequence[tuple[str, float]]  # the largest classes and their shares
    confidence: float | None  # mean probability of the predicted class
    unsure: int | None  # images below UNSURE
    agreement: float | None  # share of images to which text and prototypes give the same class


@dataclass(frozen=True)
class _LabelFree:
    """Class priors and confidence of all clients, the estimated accuracy, and what was rolled back."""

    clients: Sequence[_LabelFreeClient]
    confidence: float | None
    images: int  # whose confidence is known
    unsure: int
    agreement: float | None  # of text and prototypes, over all images
    accuracy: tuple[float, float, float] | None  # expected from calibrated confidence: share, low, high
    reviews: Sequence[ReviewedClient]
    rolled_back: Sequence[str]
    checked: bool  # on held-out images, at least once
    unchanged: float | None  # share of labels that the last refresh left as they were

    def review_command(self, run: str) -> str:
        """The command that reviews the least confident client; empty where the labels are not in the run's folder."""
        known = [(client.confidence, client.name) for client in self.clients if client.confidence is not None]
        return shlex.join(["fedcopl", "review", run, "--client", min(known)[1]]) if known else ""


def label_free(
    outcome: Outcome, labels: Mapping[str, LastLabels], reviews: Sequence[ReviewedClient] = ()
) -> _LabelFree:
    """Summarise a run from its record, the pseudo labels of its last refresh by client, and the reviews of them."""
    priors = estimated_priors(outcome)
    clients = []
    for number, client in enumerate(outcome.clients):
        prior, own = None if priors is None else priors[number], labels.get(client.name)
        largest = [] if prior is None else np.argsort(-prior, kind="stable")[:_NAMED].tolist()
        clients.append(
            _LabelFreeClient(
                client.name,
                client.train,
                [(outcome.classes[k], float(prior[k])) for k in largest if prior is not None and prior[k] >= _LEAST],
                None if own is None or not len(own.confidence) else float(own.confidence.mean()),
                None if own is None else int((own.confidence < UNSURE).sum()),
                None if own is None else own.agreement,
            )
        )
    every = np.concatenate([np.zeros(0), *(own.confidence for own in labels.values())])
    confidence = float(every.mean()) if len(every) else None
    agreeing = [(own.agreement, len(own.label)) for own in labels.values() if own.agreement is not None]
    compared = [record.labelling for record in outcome.rounds if record.labelling and record.labelling.compared]
    return _LabelFree(
        clients,
        confidence,
        len(every),
        int((every < UNSURE).sum()),
        sum(share * images for share, images in agreeing) / sum(images for _, images in agreeing) if agreeing else None,
        label_free_accuracy(confidence) if confidence is not None and has_priors(outcome) else None,
        reviews,
        [f"round {record.number}: {text}" for record in outcome.rounds for text in record.rollbacks()],
        any(record.holdout and record.holdout.images for record in outcome.rounds),
        min(1.0, compared[-1].unchanged / compared[-1].compared) if compared else None,
    )


def label_free_facts(summary: _LabelFree) -> Iterator[tuple[str, str]]:
    """Yield titles and texts for the terminal."""
    for review in summary.reviews:
        share, low, high = (f"{100 * value:.0f}" for value in (review.share, review.low, review.high))
        by = f"by review of {review.looked_at:,} images of {review.client}"
        yield "estimated accuracy", f"{share} %, 95 % interval {low} to {high} %, {by}"
    if summary.accuracy is not None and not summary.reviews:
        share, low, high = (f"{100 * value:.0f}" for value in summary.accuracy)
        yield "estimated accuracy", f"{share} %, plausible {low} to {high} %; label-free, from calibrated confidence"
    if summary.confidence is not None:
        unsure = f"{summary.unsure:,} of {summary.images:,} images below {100 * UNSURE:.0f} %"
        yield "mean confidence", f"{100 * summary.confidence:.1f} %; {unsure}"
    if summary.agreement is not None:
        yield "text and prototypes", f"agree on {100 * summary.agreement:.0f} % of the images"
    for client in [client for client in summary.clients if client.prior][:_LISTED]:
        named = ", ".join(f"{name} {100 * share:.0f} %" for name, share in client.prior)
        yield "class prior", f"{client.name}: {named}"
    nothing = "nothing" if summary.checked else "nothing: no hold-out check was made"
    yield "rolled back", "; ".join(summary.rolled_back) or nothing
