"""Results of a run without labelled test images: class priors, confidence, estimated accuracy and rollbacks."""

import json
import math
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..algorithm.accuracy_from_sample import AccuracyEstimate
from ..errors import RunFolderError
from ..files import write_text
from ..plurals import counted
from ..run.folder import file_name
from ..run.pseudo_labels import LastLabels
from ..run.record import ClientRecord, Outcome
from .formatting import SPACE, shortened
from .narrative import by_rounds, clients_rejecting_priors, has_priors

UNSURE = 0.5  # an image counts as unsure if its predicted class has a lower probability
FIRST_REVIEW = 20  # images to confirm for a first estimate of the accuracy
LOW_AGREEMENT = 0.5  # of text and prototypes; below it, the class names may describe the images poorly
SHOWN = 30  # clients in a table of the report; the others are summed up or folded
_MAX_CLASSES_SHOWN = 3  # largest classes of a client that are named
_MIN_SHARE_SHOWN = 0.005  # share of a class that is named
_LISTED = 10  # clients with class shares on the terminal
_MAX_NAME = 30  # characters of a class name on the terminal
# Ratios of additional and of missing errors to the expected errors, and a limit: see `_label_free_accuracy`.
_ADDITIONAL_ERRORS, _MISSING_ERRORS, _MAX_ADDITIONAL = 6.0, 0.5, 0.35


@dataclass(frozen=True)
class ReviewedClient:
    """Accuracy of one client's labels, estimated from an expert's answers, with a 95 % interval."""

    client: str
    share: float
    low: float
    high: float
    reviewed: int  # images of the random sample


def write_review(folder: Path, client: str, estimate: AccuracyEstimate) -> None:
    """Write the estimate of a review into the run's folder for the report; if nothing was reviewed, delete the file."""
    file = folder / "review" / f"{file_name(client)}.json"
    if not estimate.reviewed:
        file.unlink(missing_ok=True)
        return
    review = ReviewedClient(client, estimate.share, estimate.low, estimate.high, estimate.reviewed)
    write_text(file, json.dumps(asdict(review)) + "\n")


def read_reviews(folder: Path) -> list[ReviewedClient]:
    """Return the estimates of all reviews in the run's folder, by client."""
    reviews = []
    for file in sorted((folder / "review").glob("*.json")):
        try:
            review = ReviewedClient(**json.loads(file.read_bytes()))
            if not 0 <= review.low <= review.share <= review.high <= 1:
                raise ValueError("low <= share <= high does not hold")
        except (OSError, ValueError, TypeError) as error:
            raise RunFolderError(
                f"{file}: is damaged: {error}; write it again with: fedcopl review {folder} --score"
            ) from error
        reviews.append(review)
    return reviews


def _label_free_accuracy(confidence: float) -> tuple[float, float, float]:
    """Return the accuracy expected from the mean confidence of calibrated posteriors, and a range around it.

    The expected error rate is one minus the mean confidence. On frozen CLIP features of three public data sets
    (docs/results-and-review.md) the true error rate was between half and seven times the expected one, and never more
    than 35 points above it; the range covers that.
    """
    error = 1 - confidence
    low = max(0.0, confidence - min(_ADDITIONAL_ERRORS * error, _MAX_ADDITIONAL))
    return confidence, low, confidence + _MISSING_ERRORS * error


def _margin(error: float, images: int) -> float:
    """Return how far the share of a class among a client's images may be from the mean probability of the class.

    The margin is the expected error rate plus two standard deviations of the number of errors. Checked on frozen CLIP
    features of three public data sets (docs/results-and-review.md).
    """
    return error + 2 * math.sqrt((error + 1 / images) / images)


@dataclass(frozen=True)
class _LabelFreeClient:
    """Label-free estimates about one client's images."""

    name: str
    images: int | None
    shares: Sequence[tuple[str, str]]  # name and share with its range of the largest classes; empty without priors
    rejected_priors: bool  # they contradict its most confident predictions, so it uses zero-shot CLIP
    confidence: float | None  # mean probability of the predicted class
    unsure: int | None  # images below UNSURE
    agreement: float | None  # share of images with the same class by text and by prototypes


@dataclass(frozen=True)
class _LabelFree:
    """Class shares and confidence of all clients, estimated accuracy and rollbacks."""

    clients: Sequence[_LabelFreeClient]
    confidence: float | None
    images: int  # with a pseudo label
    unsure: int
    agreement: float | None  # of text and prototypes, over all images
    accuracy: tuple[float, float, float] | None  # from calibrated confidence: share, low, high; None after all reviews
    rejections: int  # clients that rejected the priors; `accuracy` is without them
    reviews: Sequence[ReviewedClient]
    rounds_rolled_back: int
    rolled_back: Sequence[str]  # trainings and averages that were rolled back or skipped, with the reason
    checked: bool  # whether any round had a hold-out check
    unchanged: float | None  # share of labels that the last refresh did not change

    def review_command(self, run: str) -> str:
        """Return the command that reviews the client with the lowest mean confidence; empty if none is left.

        Reviewed clients and clients without labels in the run's folder are left out. A client with fewer than
        FIRST_REVIEW images is chosen only if no other is left.
        """
        reviewed = {review.client for review in self.reviews}
        candidates = [one for one in self.clients if one.confidence is not None and one.name not in reviewed]
        enough = [client for client in candidates if (client.images or 0) >= FIRST_REVIEW]
        client = min(enough or candidates, key=lambda client: client.confidence or 0.0, default=None)
        return shlex.join(["fedcopl", "review", run, "--client", client.name]) if client else ""


def mean_confidence(labels: Mapping[str, LastLabels], excluded: Collection[str] = ()) -> float | None:
    """Return the mean probability of the pseudo labels of all clients; None without pseudo labels."""
    by_client = [last.confidence for name, last in labels.items() if name not in excluded and len(last.label)]
    return float(np.concatenate(by_client).mean()) if by_client else None


def label_free(
    outcome: Outcome, labels: Mapping[str, LastLabels], reviews: Sequence[ReviewedClient] = ()
) -> _LabelFree:
    """Summarise a run from its record, the pseudo labels of its last refresh by client, and their reviews."""
    rejecting, with_priors = clients_rejecting_priors(outcome), has_priors(outcome)
    clients = [
        _label_free_client(client, labels.get(client.name), outcome.classes, with_priors, client.name in rejecting)
        for client in (outcome.clients[k] for k in largest_clients(outcome, len(outcome.clients)))
    ]
    calibrated = mean_confidence(labels, rejecting) if with_priors else None
    not_reviewed = {client.name for client in clients} - {review.client for review in reviews}
    agreeing = [(last.agreement, len(last.label)) for last in labels.values() if last.agreement is not None]
    compared = [record.labelling for record in outcome.rounds if record.labelling and record.labelling.compared]
    checks = [record.holdout for record in outcome.rounds if record.holdout]
    return _LabelFree(
        clients=clients,
        confidence=mean_confidence(labels),
        images=sum(len(last.label) for last in labels.values()),
        unsure=sum(client.unsure or 0 for client in clients),
        agreement=sum(share * images for share, images in agreeing) / sum(n for _, n in agreeing) if agreeing else None,
        accuracy=_label_free_accuracy(calibrated) if calibrated is not None and not_reviewed else None,
        rejections=len(rejecting),
        reviews=reviews,
        rounds_rolled_back=sum(bool(one.trainings_rolled_back or one.server_rolled_back) for one in checks),
        rolled_back=by_rounds((record.number, text) for record in outcome.rounds for text in record.rollbacks()),
        checked=any(one.images for one in checks),
        unchanged=min(1.0, compared[-1].unchanged / compared[-1].compared) if compared else None,
    )


def largest_clients(outcome: Outcome, most: int = SHOWN) -> list[int]:
    """Return the indices of all clients in order; of more than SHOWN, the `most` with most images, largest first."""
    sizes = np.array([client.train or 0 for client in outcome.clients])
    if len(sizes) <= SHOWN:
        return list(range(len(sizes)))
    return [int(k) for k in np.argsort(-sizes, kind="stable")[:most]]


def _label_free_client(
    client: ClientRecord, labels: LastLabels | None, classes: Sequence[str], with_priors: bool, rejected_priors: bool
) -> _LabelFreeClient:
    """Return a client's largest class shares (none if it rejected the priors), its confidence and its unsure images."""
    if labels is None or not len(labels.label):
        return _LabelFreeClient(client.name, client.train, (), rejected_priors, None, None, None)
    shares: list[tuple[str, str]] = []
    if with_priors and not rejected_priors and labels.class_share is not None and labels.class_error is not None:
        largest = np.argsort(-labels.class_share, kind="stable")[:_MAX_CLASSES_SHOWN].tolist()
        for k in (k for k in largest if labels.class_share[k] >= _MIN_SHARE_SHOWN):
            share, margin = float(labels.class_share[k]), _margin(float(labels.class_error[k]), len(labels.label))
            low, high = max(0.0, share - margin), min(1.0, share + margin)
            shares.append((classes[k], f"{100 * share:.0f}{SPACE}% ({100 * low:.0f} to {100 * high:.0f})"))
    confidence, unsure = float(labels.confidence.mean()), int((labels.confidence < UNSURE).sum())
    return _LabelFreeClient(client.name, client.train, shares, rejected_priors, confidence, unsure, labels.agreement)


def label_free_facts(summary: _LabelFree) -> Iterator[tuple[str, str]]:
    """Yield title and text of each line that the terminal shows of a run without labelled test images."""
    for review in summary.reviews:
        share, low, high = (f"{100 * value:.0f}" for value in (review.share, review.low, review.high))
        by = f"by review of {review.reviewed:,} images of {review.client}"
        yield "estimated accuracy", f"{share} %, 95 % interval {low} to {high} %, {by}"
    if summary.accuracy is not None:
        share, low, high = (f"{100 * value:.0f}" for value in summary.accuracy)
        rejecting = counted(summary.rejections, "client")
        without = f", without {rejecting} that rejected the priors" if summary.rejections else ""
        origin = f"label-free, from calibrated confidence{without}"
        yield "estimated accuracy", f"{share} %, plausible {low} to {high} %; {origin}"
    if summary.confidence is not None:
        unsure = f"{summary.unsure:,} of {summary.images:,} images below {100 * UNSURE:.0f} %"
        yield "mean confidence", f"{100 * summary.confidence:.1f} %; {unsure}"
    if summary.agreement is not None:
        warning = ": the class names may describe the images poorly" if summary.agreement < LOW_AGREEMENT else ""
        yield "text and prototypes", f"agree on {100 * summary.agreement:.0f} % of the images{warning}"
    listed = [client for client in summary.clients if client.shares or client.rejected_priors]
    for client in listed[:_LISTED]:
        shares = ", ".join(f"{shortened(name, _MAX_NAME)} {share}".replace(SPACE, " ") for name, share in client.shares)
        yield "class prior", f"{client.name}: {shares or 'none: rejected the priors'}"
    if len(listed) > _LISTED:
        yield "class prior", f"{counted(len(listed) - _LISTED, 'more client')}: see the report"
