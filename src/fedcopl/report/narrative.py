"""Sentences of the report about any method and labeler."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..labelers import LABELERS
from ..run.record import Outcome
from . import formatting as fmt


@dataclass(frozen=True)
class LabelTexts:
    """Sentences about the labels of a run, and about the three counts of a refresh."""

    rule: str  # how the images of each class were selected
    labelled: str  # what happens at a refresh
    estimated: str
    allocated: str
    selected: str = "Images used in training with this label."
    cooperative: bool = False  # whether the server allocated the images of each class
    supervised: bool = False


_PREDICTED = "Images by the class that their client predicts."
_CONFIDENT = "Confident images by the class that their client predicts."
_LABELLED_AT_REFRESH = (
    "At a refresh each client labels its images again: first with zero-shot CLIP, later with the trained model."
)
_TRUE_LABELS = LabelTexts(
    rule="The true labels of all images were used.",
    labelled="The labels are the true ones.",
    estimated="Images by their true class.",
    allocated="Images by their true class: all are used.",
    selected="Images used in training.",
    supervised=True,
)


def label_texts(outcome: Outcome) -> LabelTexts:
    """Return the sentences about the run's labels, and about its priors if it has priors."""
    texts = _texts_without_priors(outcome)
    if texts.supervised or not has_priors(outcome):
        return texts
    return replace(texts, labelled=f"{texts.labelled} Both use the label-free priors.")


def _texts_without_priors(outcome: Outcome) -> LabelTexts:
    """Return the sentences for true labels, for a labeler that selects images at each client, or for CoPL."""
    if outcome.setting("options", "labels") == "truth":
        return _TRUE_LABELS
    labeler = outcome.setting("labeler")
    if labeler not in (None, "copl"):
        clause = _labeler_summary(labeler)
        rule = f"{clause[:1].upper()}{clause[1:]}."
        return LabelTexts(rule, _LABELLED_AT_REFRESH, _PREDICTED, "Maximum per class, set by the client.")
    filtered = any(outcome.setting("labels", key) is not False for key in ("confidence_filter", "entropy_filter"))
    balanced = outcome.setting("labels", "global_allocation") is not False
    return LabelTexts(
        rule="The server allocates an equal share of the estimated images to each class, rounded up at each client."
        if balanced
        else "Global allocation is switched off: each client uses its own counts.",
        labelled=_LABELLED_AT_REFRESH,
        estimated=_CONFIDENT if filtered else _PREDICTED,
        allocated="Maximum per class, set by the server." if balanced else "The client's own counts.",
        cooperative=balanced,
    )


def has_priors(outcome: Outcome) -> bool:
    """Return whether any client estimated a class prior."""
    return any(any(refresh.class_prior) for refresh in outcome.refreshes)


def clients_rejecting_priors(outcome: Outcome) -> set[str]:
    """Return the clients that rejected the priors in any round, and therefore use zero-shot CLIP."""
    return {name for record in outcome.rounds for name, note in record.bounded.items() if "rejected the priors" in note}


def run_summary(outcome: Outcome) -> str:
    """Describe the run in one sentence."""
    image_count = outcome.images_held
    images = "their own images" if image_count is None else fmt.several(image_count, "image")
    classes = fmt.several(len(outcome.classes), "class", "classes")
    clients = fmt.several(len(outcome.clients), "client")
    texts = label_texts(outcome)
    if not outcome.trains:
        adjusted = ", adjusted by label-free priors" if has_priors(outcome) else ""
        return f"Zero-shot CLIP predictions{adjusted}, without training: {clients}, {images}, {classes}."
    if outcome.centralised and texts.supervised:
        return f"Supervised training on all {images} in one place, {classes}: an upper bound for a federation."
    if outcome.centralised:
        return f"Training without labels on all {images} in one place, {classes}: a reference, not a federation."
    if all(record.loss is None and record.kept_old_prompt for record in outcome.rounds):
        return f"{clients} labelled {images} of {classes} without labels; nothing was trained, see the warnings."
    server = f"the server {'balances the classes and ' if texts.cooperative else ''}{_server_part(outcome)}"
    return (
        f"{clients} trained a classifier of {classes} on {images} without labels: {_client_part(outcome)}, "
        f"{server}, and no image leaves its client."
    )


def _client_part(outcome: Outcome) -> str:
    if (labeler := outcome.setting("labeler")) not in (None, "copl"):
        return _labeler_summary(labeler)
    selection = "" if label_texts(outcome).cooperative else " and trains on the confident ones"
    return f"each client pseudo-labels its own images{selection}"


def _labeler_summary(labeler: object) -> str:
    """Return the labeler's clause about each client; a general one if the plug-in of the labeler is missing."""
    labeler_class = LABELERS.get(str(labeler))
    return labeler_class.summary if labeler_class else f"each client selects images by the labeler {labeler}"


def _server_part(outcome: Outcome) -> str:
    """Return the clause about what the server averages."""
    if outcome.averaged is None:
        return f"averages the arrays that {outcome.method or outcome.setting('method') or 'the method'} shares"
    return f"averages their {' and '.join(outcome.averaged)}" if outcome.averaged else "averages nothing"


def by_rounds(lines: Iterable[tuple[int, str]]) -> list[str]:
    """Return each text once, preceded by its rounds.

    >>> by_rounds([(1, "one"), (1, "other"), (2, "one"), (3, "one"), (6, "one")])
    ['rounds 1 to 3, 6: one', 'round 1: other']
    """
    spans: dict[str, list[tuple[int, int]]] = {}
    for number, text in lines:
        ranges = spans.setdefault(text, [])
        first = ranges.pop()[0] if ranges and ranges[-1][1] == number - 1 else number
        ranges.append((first, number))
    descriptions = []
    for text, ranges in spans.items():
        listed = ", ".join(f"{first} to {last}" if last > first else f"{first}" for first, last in ranges)
        descriptions.append(f"round{'' if listed.isdecimal() else 's'} {listed}: {text}")
    return descriptions
