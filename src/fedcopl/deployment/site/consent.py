"""What a site lets go: on what conditions it answers at all, and what leaves it then, field by field.

The settings of a run are the server's; the conditions are the site's own. What leaves is made from the list of messages
itself, so that nothing can be forgotten.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

from ...config import RunConfig
from ...errors import ConfigError
from ...messages import REPLY_TO, Ask, Estimate, Train

USUAL = ("visual",)  # what FedCoPL averages; all else is personal
NEVER = "images, file names, labels, predictions, what stays at home of the prompts, the private key, site.secret"
WORDS = {
    ("Adapted", "sums"): "sums over its images for the priors: of posteriors, and of image features by class",
    ("Adapted", "masked"): "the same under masks, instead, where the run has secure sums",
    ("Estimated", "counts"): "how many images of each class it is sure of, at each refresh",
    ("Estimated", "masked"): "the same under masks, instead, where the run has secure sums",
    ("Selected", "examples"): "how many images it chose to train on; nothing where the run is private",
    ("Selected", "images"): "how many images it has; nothing where the run is private",
    ("Selected", "unchanged"): "how many it labels as at its last refresh; nothing where the run is private",
    ("Trained", "shared"): "the prompts that are averaged (for FedCoPL the visual prompt), after each round",
    ("Trained", "examples"): "how many images it trained on",
    ("Trained", "loss"): "the training loss",
    ("Trained", "checks"): "whether training helps, on images it does not train on; nothing with noise",
    ("Trained", "masked"): "these under masks, instead, where the run has secure sums",
    ("Evaluated", "correct"): "how many labelled test images are right; 0 of 0 if it has none, or wants masks or noise",
    ("Evaluated", "examples"): "how many labelled test images it has; 0 likewise",
    ("Introduced", "keys"): "public keys made for one secure sum",
    ("SharedOut", "sealed"): "shares of the secrets behind its masks, sealed for the other sites",
    ("Unmasked", "shares"): "shares that take the masks off a sum, never off one site's numbers",
}
ALSO = (
    "with each answer a random number that stands for its folder, so that nobody else can answer in its name",
    "its name and its public key",
    "where it does not answer, why: its conditions, its version, the digests of its classes and of its model, or only "
    "the kind of error",
    "how long each answer took (Flower says so), which hints at how many images it has, also in secure sums",
)


@dataclass(frozen=True)
class Consent:
    """What a site lets go, and what it asks for in return."""

    share: tuple[str, ...] = USUAL  # prompts that may leave
    least_sites: int = 0  # above 0: it answers only in secure sums, of at least so many sites
    least_noise: float = 0.0  # in units of the clips, as `privacy.noise`

    def __post_init__(self) -> None:
        if not self.share:
            raise ConfigError("share: name at least one kind of prompts, or there is nothing to take part with")
        if self.least_sites < 0 or not 0 <= self.least_noise < math.inf:  # nan would be a condition that always holds
            raise ConfigError("least-sites, least-noise: must be numbers from 0 on")

    def __str__(self) -> str:
        sums = f"only in secure sums of at least {self.least_sites} sites" if self.least_sites else "openly or in sums"
        noise = f", with noise of at least {self.least_noise:g}" if self.least_noise else ""
        accuracy = "" if self.tells_accuracy else ", and does not tell how many of its test images are right"
        return f"it shares {', '.join(self.share)} prompts, {sums}{noise}{accuracy}"

    @property
    def tells_accuracy(self) -> bool:
        """A number about its test images has neither masks nor noise: a site that wants either keeps it to itself."""
        return not self.least_sites and not self.least_noise

    def objections(self, ask: Ask, config: RunConfig) -> Iterator[str]:
        """Why this question is not answered in a run with these settings; none: it is."""
        foreign = sorted(set(ask.shared) - set(self.share)) if isinstance(ask, Estimate | Train) else []
        if foreign:
            yield f"the run averages the prompt {foreign[0]!r}, and this site shares only {', '.join(self.share)}"
        privacy = config.privacy
        if self.least_sites and not privacy.secure_sums:
            yield "this site answers only with privacy.secure_sums, and the run has none"
        elif self.least_sites > privacy.min_sites:
            least, there = self.least_sites, privacy.min_sites
            yield f"this site wants sums of at least {least} sites, and privacy.min_sites is {there}"
        if self.least_noise > privacy.noise:
            yield f"this site wants privacy.noise of at least {self.least_noise:g}, and the run has {privacy.noise:g}"


def what_leaves() -> Iterator[str]:
    """One line for each field of each answer; for one without words of its own, its name."""
    for kind in REPLY_TO.values():
        for field in fields(kind):
            words = WORDS.get((kind.__name__, field.name), "see docs/what-leaves-a-client.md")
            yield f"{kind.__name__}.{field.name}: {words}"
    yield from ALSO
