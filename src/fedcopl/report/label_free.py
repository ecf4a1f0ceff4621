"""What a run tells without any label: class priors, confidence and rollbacks, for the report and the terminal."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..run.record import Outcome
from .gallery import Example
from .tables import estimated_priors

UNSURE = 0.5  # probability of the predicted class below which an image counts as unsure
NAMED = 3  # largest classes of a prior that are named
LEAST = 0.005  # share of a class that is named
LISTED = 10  # clients whose prior is printed on the terminal
DOUBTED = 12  # examples shown among those with the lowest confidence


@dataclass(frozen=True)
class LabelFreeClient:
    """A client's estimated class prior and confidence."""

    name: str
    images: int | None
    prior: Sequence[tuple[str, float]]  # the largest classes and their shares
    confidence: float | None  # mean probability of the predicted class
    unsure: int | None  # images below UNSURE


@dataclass(frozen=True)
class LabelFree:
    """Class priors and confidence of all clients, with what was rolled back."""

    clients: Sequence[LabelFreeClient]
    confidence: float | None
    images: int  # whose confidence is known
    unsure: int
    rolled_back: Sequence[str]
    checked: bool  # on held-out images, at least once
    unchanged: float | None  # share of labels that the last refresh left as they were

    def review_command(self, run: str) -> str:
        """The command that reviews the least confident client; empty where the labels are not in the run's folder."""
        known = [(client.confidence, client.name) for client in self.clients if client.confidence is not None]
        return shlex.join(["fedcopl", "review", run, "--client", min(known)[1]]) if known else ""


def label_free(outcome: Outcome, confidence: Mapping[str, NDArray[np.float64]]) -> LabelFree:
    """Summarise a run from its record and the probabilities of its last pseudo labels, by client."""
    priors = estimated_priors(outcome)
    clients = [
        _client(outcome, number, None if priors is None else priors[number], confidence.get(client.name))
        for number, client in enumerate(outcome.clients)
    ]
    every = np.concatenate([np.zeros(0), *confidence.values()])
    compared = [record.labelling for record in outcome.rounds if record.labelling and record.labelling.compared]
    return LabelFree(
        clients,
        float(every.mean()) if len(every) else None,
        len(every),
        int((every < UNSURE).sum()),
        [f"round {record.number}: {text}" for record in outcome.rounds for text in record.rollbacks()],
        any(record.holdout and record.holdout.images for record in outcome.rounds),
        min(1.0, compared[-1].unchanged / compared[-1].compared) if compared else None,
    )


def _client(
    outcome: Outcome, number: int, prior: NDArray[np.float64] | None, own: NDArray[np.float64] | None
) -> LabelFreeClient:
    client = outcome.clients[number]
    largest = [] if prior is None or not prior.any() else np.argsort(-prior, kind="stable")[:NAMED].tolist()
    return LabelFreeClient(
        client.name,
        client.train,
        [(outcome.classes[k], float(prior[k])) for k in largest if prior is not None and prior[k] >= LEAST],
        None if own is None or not len(own) else float(own.mean()),
        None if own is None else int((own < UNSURE).sum()),
    )


def doubted(examples: Sequence[Example]) -> list[Example]:
    """The examples with the lowest confidence, the lowest first."""
    return sorted(examples, key=lambda example: example.confidence)[:DOUBTED]


def label_free_facts(summary: LabelFree) -> Iterator[tuple[str, str]]:
    """Titles and texts for the terminal."""
    if summary.confidence is not None:
        unsure = f"{summary.unsure:,} of {summary.images:,} images below {100 * UNSURE:.0f} %"
        yield "mean confidence", f"{100 * summary.confidence:.1f} %; {unsure}"
    for client in [client for client in summary.clients if client.prior][:LISTED]:
        named = ", ".join(f"{name} {100 * share:.0f} %" for name, share in client.prior)
        yield "class prior", f"{client.name}: {named}"
    nothing = "nothing" if summary.checked else "nothing: no hold-out check was made"
    yield "rolled back", "; ".join(summary.rolled_back) or nothing
