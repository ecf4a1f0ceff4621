"""What was done, in words that are true for every method and labeler."""

from dataclasses import dataclass, replace

from ..run.record import Outcome
from . import numbers as words

OLD_NAMES = {  # of what is averaged, in folders of version 0.1, which know the arrays but no words for them
    "visual": "visual prompts",
    "text": "text prompts",
    "global text": "global text prompts",
    **dict.fromkeys(("down", "down bias", "up", "up bias"), "adapters"),
}


@dataclass(frozen=True)
class LabelStory:
    """Where the labels came from, and what the three counts of a refresh mean."""

    title: str  # of the part about the classes
    account: str  # what was done about them; empty where the page tells who gave and who got
    labelled: str  # what happens at a refresh
    estimated: str
    allocated: str
    selected: str
    cooperative: bool = False  # the server shared the classes out
    supervised: bool = False


COUNTED = "Images counted by the class that their client predicts."
SURE = "Images a client is sure of, counted by the class it predicts."
USED = "Pseudo labels it did use, as far as it has images for them."
ANEW = (
    "At a refresh each client labels its images anew: the first time by zero-shot CLIP, later by what has been learned."
)
THROUGH_PRIORS = "Both are read through the priors."
EVERY_CLASS = "Images per class"

TRUTH = LabelStory(
    title=EVERY_CLASS,
    account="The true labels were used, all of them: nothing was estimated and nothing shared out.",
    labelled="The labels are the true ones, so all of them are right.",
    estimated="Images by their true class.",
    allocated="Images that may be used of each class: all.",
    selected="Images that were used.",
    supervised=True,
)
SURE_ONES = LabelStory(
    title=EVERY_CLASS,
    account="FPL shares nothing out: every client may take the same number of its surest images of each class.",
    labelled=ANEW,
    estimated=COUNTED,
    allocated="The most a client may take of each class: the same for all.",
    selected=USED,
)
CANDIDATES = LabelStory(
    title=EVERY_CLASS,
    account="CPL shares nothing out: every client may take the same number of images of each class.",
    labelled=f"{ANEW} An image trains with all its candidate labels; the class it was given to is its label here.",
    estimated=COUNTED,
    allocated="The most a client may take of each class: the same for all.",
    selected=USED,
)


def label_story(outcome: Outcome) -> LabelStory:
    story = _story(outcome)
    if story.supervised or not has_priors(outcome):
        return story
    return replace(story, labelled=f"{story.labelled} {THROUGH_PRIORS}")


def _story(outcome: Outcome) -> LabelStory:
    if outcome.setting("options", "labels") == "truth":
        return TRUTH
    match outcome.setting("labeler"):
        case "fpl":
            return SURE_ONES
        case "cpl":
            return CANDIDATES
    return _own_or_balanced(outcome)


def _own_or_balanced(outcome: Outcome) -> LabelStory:
    filtered = any(outcome.setting("labels", key) is not False for key in ("confidence_filter", "entropy_filter"))
    balanced = outcome.setting("labels", "global_allocation") is not False
    off = "Global allocation was switched off: every client was allowed what it had counted itself."
    return LabelStory(
        title="Balance: who gave, who got" if balanced else EVERY_CLASS,
        account="" if balanced else off,
        labelled=ANEW,
        estimated=SURE if filtered else COUNTED,
        allocated="Pseudo labels a client may use of each class" + ("." if balanced else ": what it counted."),
        selected=USED,
        cooperative=balanced,
    )


def lead(outcome: Outcome) -> str:
    """The run in one sentence."""
    held = outcome.images_held
    images = "their own images" if held is None else words.several(held, "image", "images")
    classes = words.several(len(outcome.classes), "class", "classes")
    clients = words.several(len(outcome.clients), "client", "clients")
    if not outcome.trains:
        whose = (
            "plain CLIP's answers through priors that need no label" if has_priors(outcome) else "plain CLIP's answers"
        )
        return f"Nothing was trained: these are {whose} for {classes}, at {clients} with {images}."
    if outcome.pools:
        return _pooled(images, classes, label_story(outcome))
    return (
        f"{clients} learned to tell {classes} apart from {images} without using a single label: "
        f"{_what_clients_do(outcome)}, {_what_the_server_does(outcome)}, and no image leaves its client."
    )


def has_priors(outcome: Outcome) -> bool:
    """Whether the clients labelled and answered through priors, by what they believed of their mix."""
    return any(any(refresh.class_priors) for refresh in outcome.refreshes)


def _pooled(images: str, classes: str, how: LabelStory) -> str:
    if how.supervised:
        return (
            f"One place with all {images} and their true labels learned to tell {classes} apart: "
            "supervised learning, an upper bound for what a federation can do."
        )
    return (
        f"One place with all {images} learned to tell {classes} apart without using a single label. "
        "No federation can do this: it is there to be compared with."
    )


def _what_clients_do(outcome: Outcome) -> str:
    match outcome.setting("labeler"):
        case "fpl":
            return "each client trains on its surest images of each class"
        case "cpl":
            return "each client trains on its own images with a set of candidate labels for each"
    alone = "" if label_story(outcome).cooperative else " and trains on as many as it is sure of"
    return f"each client pseudo-labels its own images{alone}"


def _what_the_server_does(outcome: Outcome) -> str:
    balances = "balances how many of each class are trained on and " if label_story(outcome).cooperative else ""
    return f"the server {balances}{averages(outcome)}"


def averages(outcome: Outcome) -> str:
    """What the server does with the prompts of the clients."""
    if outcome.averaged is None and outcome.shared is None:
        return f"averages what {outcome.method or outcome.setting('method') or 'the method'} shares"
    names = outcome.averaged
    if names is None:
        names = tuple(dict.fromkeys(OLD_NAMES.get(name, name) for name in outcome.shared or ()))
    return f"averages their {' and '.join(names)}" if names else "averages nothing"
