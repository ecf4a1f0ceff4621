"""What leaves a site, in words: made from the list of messages itself, so that nothing can be forgotten."""

from collections.abc import Iterator
from dataclasses import fields

from ...messages import REPLY_TO

NEVER = "images, file names, labels, predictions, what stays at home of the prompts, the private key, site.secret"
WORDS = {
    ("Estimated", "counts"): "how many images of each class it is sure of, at each refresh",
    ("Estimated", "masked"): "the same under masks, instead, where the run has secure sums",
    ("Selected", "examples"): "how many images it chose to train on; nothing where the run is private",
    ("Selected", "images"): "how many images it has; nothing where the run is private",
    ("Selected", "unchanged"): "how many it labels as at its last refresh; nothing where the run is private",
    ("Trained", "shared"): "the prompts that are averaged (for FedCoPL the visual prompt), after each round",
    ("Trained", "examples"): "how many images it trained on",
    ("Trained", "loss"): "the training loss",
    ("Trained", "masked"): "these three under masks, instead, where the run has secure sums",
    ("Evaluated", "correct"): "how many labelled test images are right; 0 of 0 if it has none, or wants masks or noise",
    ("Evaluated", "examples"): "how many labelled test images it has; 0 likewise",
    ("Introduced", "keys"): "public keys made for one secure sum",
    ("SharedOut", "sealed"): "shares of the secrets behind its masks, sealed for the other sites",
    ("Unmasked", "shares"): "shares that take the masks off a sum, never off one site's numbers",
}
ALSO = (
    "with each answer a random number that stands for its folder, so that nobody else can answer in its place",
    "its name and its public key",
    "where it does not answer, why: its conditions, its version, the digests of its classes and of its model, or only "
    "the kind of error",
    "how long each answer took (Flower says so), which hints at how many images it has, also in secure sums",
)


def leaving() -> Iterator[str]:
    """One line for each field of each answer; for one without words of its own, its name."""
    for kind in REPLY_TO.values():
        for field in fields(kind):
            words = WORDS.get((kind.__name__, field.name), "see docs/what-leaves-a-client.md")
            yield f"{kind.__name__}.{field.name}: {words}"
    yield from ALSO
