"""What was done, in words that are true for every method and labeler."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import numbers as words

Results = Mapping[str, Any]
"""The outcome of a run as results.json holds it."""

AVERAGED = {  # what the server averages, by the names the methods give it
    "visual": "visual prompts",
    "text": "text prompts",
    "global text": "global text prompts",
    "down": "adapters",
    "down bias": "adapters",
    "up": "adapters",
    "up bias": "adapters",
}


@dataclass(frozen=True)
class Labelling:
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
EVERY_CLASS = "Images per class"

TRUTH = Labelling(
    title=EVERY_CLASS,
    account="The true labels were used, all of them: nothing was estimated and nothing shared out.",
    labelled="The labels are the true ones, so all of them are right.",
    estimated="Images by their true class.",
    allocated="Images that may be used of each class: all.",
    selected="Images that were used.",
    supervised=True,
)
SURE_ONES = Labelling(
    title=EVERY_CLASS,
    account="FPL shares nothing out: every client may take the same number of its surest images of each class.",
    labelled=ANEW,
    estimated=COUNTED,
    allocated="The most a client may take of each class: the same for all.",
    selected=USED,
)
CANDIDATES = Labelling(
    title=EVERY_CLASS,
    account="CPL shares nothing out: every client may take the same number of images of each class.",
    labelled=f"{ANEW} An image trains with all its candidate labels; the class it was given to is its label here.",
    estimated=COUNTED,
    allocated="The most a client may take of each class: the same for all.",
    selected=USED,
)


def labelling(results: Results) -> Labelling:
    if setting(results, "method") == "central" and setting(results, "options", "labels") == "truth":
        return TRUTH
    match setting(results, "labeler"):
        case "fpl":
            return SURE_ONES
        case "cpl":
            return CANDIDATES
    return _cooperative(results)


def _cooperative(results: Results) -> Labelling:
    filtered = any(setting(results, "labels", key) is not False for key in ("confidence_filter", "entropy_filter"))
    shared_out = setting(results, "labels", "global_allocation") is not False
    return Labelling(
        title="Balance: who gave, who got" if shared_out else EVERY_CLASS,
        account=""
        if shared_out
        else "Global allocation was switched off: every client was allowed what it had counted itself.",
        labelled=ANEW,
        estimated=SURE if filtered else COUNTED,
        allocated="Pseudo labels a client may use of each class" + ("." if shared_out else ": what it counted."),
        selected=USED,
        cooperative=shared_out,
    )


def setting(results: Results, *place: str) -> Any:
    """A setting, or None where this run knows no such setting."""
    value: Any = results["settings"]
    for key in place:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def images_held(results: Results) -> int | None:
    """How many training images there are in all; a server of real sites is not told."""
    held = [client["train"] for client in results["clients"]]
    return None if None in held else sum(held)


def lead(results: Results) -> str:
    """The run in one sentence."""
    held = images_held(results)
    images = "their own images" if held is None else words.several(held, "image", "images")
    classes = words.several(len(results["classes"]), "class", "classes")
    clients = words.several(len(results["clients"]), "client", "clients")
    how = labelling(results)
    match setting(results, "method"):
        case "zeroshot":
            return f"Nothing was trained: these are plain CLIP's answers for {classes}, at {clients} with {images}."
        case "central" if how.supervised:
            return (
                f"One place with all {images} and their true labels learned to tell {classes} apart: "
                "supervised learning, an upper bound for what a federation can do."
            )
        case "central":
            return (
                f"One place with all {images} learned to tell {classes} apart without using a single label. "
                "No federation can do this: it is there to be compared with."
            )
    return (
        f"{clients} learned to tell {classes} apart from {images} without using a single label: "
        f"{_what_clients_do(results)}, {_what_the_server_does(results)}, and no image leaves its client."
    )


def _what_clients_do(results: Results) -> str:
    match setting(results, "labeler"):
        case "fpl":
            return "each client trains on its surest images of each class"
        case "cpl":
            return "each client trains on its own images with a set of candidate labels for each"
    alone = "" if labelling(results).cooperative else " and trains on as many as it is sure of"
    return f"each client pseudo-labels its own images{alone}"


def _what_the_server_does(results: Results) -> str:
    balances = "balances how many of each class are trained on and " if labelling(results).cooperative else ""
    return f"the server {balances}{averages(results)}"


def averages(results: Results) -> str:
    """What the server does with the prompts of the clients."""
    names = results.get("shared")
    if names is None:
        return f"averages what {setting(results, 'method') or 'the method'} shares"
    several = list(dict.fromkeys(AVERAGED.get(name, name) for name in names))
    return f"averages their {' and '.join(several)}" if several else "averages nothing"
