"""What a site lets go: on what conditions it answers at all, and what leaves it then, field by field.

The settings of a run are the server's; the conditions are the site's own. What leaves is made from the list of messages
itself, so that nothing can be forgotten.
"""

import difflib
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache

from ...config import RunConfig
from ...errors import ConfigError
from ...messages import REPLY_TO, Estimate, KeyRequest, Request, Train
from ...methods import METHODS, choose_method
from ...plurals import counted

FEATURES = "features"  # beside prompts: sums of image features, in all and by class, for the priors
USUAL = ("visual",)  # what FedCoPL averages; class feature sums are opt-in
FEATURE_SITES = 3  # in each secure aggregation of class feature sums, where `--min-sites` names no number
MIN_IMAGES = 5  # fewer are somebody in particular
NEVER = "images, file names, labels, predictions, what stays at home of the prompts, the private key, site.secret"
WORDS = {
    ("Adapted", "sums"): "sums of posteriors over its images, for the priors",
    (
        "Adapted",
        "masked",
    ): "such sums under masks, instead, where the run has secure aggregation; "
    "with `--share features` also sums of image features by class",
    ("Adapted", "refused"): "whether the priors contradict its most confident images; nothing where the run is private",
    ("Estimated", "counts"): "how many images of each class it is sure of, at each refresh",
    ("Estimated", "masked"): "its class counts under masks, instead, where the run has secure aggregation",
    ("Selected", "examples"): "how many images it chose to train on; nothing where the run is private",
    ("Selected", "images"): "how many images it has; nothing where the run is private",
    ("Selected", "unchanged"): "how many it labels as at its last refresh; nothing where the run is private",
    ("Trained", "shared"): "the prompts that are averaged (for FedCoPL the visual prompt), after each round",
    ("Trained", "examples"): "how many images it trained on",
    ("Trained", "loss"): "the training loss",
    ("Trained", "checks"): "whether training helps, on images it does not train on; nothing with noise",
    ("Trained", "masked"): "its prompts, images and loss under masks, instead, where the run has secure aggregation",
    ("Evaluated", "correct"): "how many labelled test images are right; 0 of 0 if it has none, or wants masks or noise",
    ("Evaluated", "examples"): "how many labelled test images it has; 0 likewise",
    ("PublicKeys", "keys"): "public keys made for one secure aggregation",
    ("PublicKeys", "voucher"): "its public key, and its signature that they are its own, for the other sites",
    ("KeyShares", "sealed"): "shares of the secrets behind its masks, sealed for the other sites",
    ("Unmasked", "shares"): "shares that take the masks off a sum, never off one site's numbers",
}
ALSO = (
    "with each answer a random number that stands for its folder, so that nobody else can answer in its name",
    "its name and its public key",
    "where it does not answer, why: its conditions, its version, the digests of its classes and of its model, or only "
    "the kind of error",
    "how long each answer took, by when it comes, which hints at how many images it has, also in secure aggregation",
)


@dataclass(frozen=True)
class Consent:
    """What a site lets go, and what it asks for in return."""

    share: tuple[str, ...] = USUAL  # prompts that may leave, and `features`
    min_sites: int = 0  # above 0: it answers only in secure aggregation, of at least so many sites
    min_noise: float = 0.0  # in units of the clips, as `privacy.noise_multiplier`
    min_images: int = MIN_IMAGES  # behind an update, a sum for the priors or a class feature sum
    secure_aggregation: bool = True  # False: it takes part in none

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ConfigError("share: name at least one kind of prompts, or there is nothing to take part with")
        for name in self.share:
            _refuse_unknown(name)
        if min(self.min_sites, self.min_images) < 0 or not 0 <= self.min_noise < math.inf:  # nan would hold
            raise ConfigError("min-sites, min-noise, min-images: must be numbers from 0 on")
        if self.min_sites and not self.secure_aggregation:
            raise ConfigError(
                "min-sites: is about secure aggregation, and no-secure-aggregation refuses them; say one of both"
            )

    @property
    def prompts(self) -> tuple[str, ...]:
        return tuple(name for name in self.share if name != FEATURES)

    def __str__(self) -> str:
        sites = self.min_sites or FEATURE_SITES
        features = (
            f" and class feature sums (secure aggregation of at least {sites} sites)"
            if FEATURES in self.share
            else " but no class feature sums"
        )
        sums = (
            f"only in secure aggregation of at least {counted(self.min_sites, 'site')}"
            if self.min_sites
            else "openly or in sums"
        )
        noise = f", with noise of at least {self.min_noise:g}" if self.min_noise else ""
        images = f", in updates and sums of at least {counted(self.min_images, 'image')}"
        accuracy = "" if self.tells_accuracy else ", and does not tell how many of its test images are right"
        how = sums if self.secure_aggregation else "openly, never in secure aggregation"
        return f"it shares {', '.join(self.prompts)} prompts{features}, {how}{noise}{images}{accuracy}"

    @property
    def tells_accuracy(self) -> bool:
        """A number about its test images has neither masks nor noise: a site that wants either keeps it to itself."""
        return not self.min_sites and not self.min_noise

    def objections(self, request: Request, config: RunConfig) -> Iterator[str]:
        """Why this question is not answered in a run with these settings; none: it is."""
        sent = request.shared if isinstance(request, Estimate | Train) else ()
        foreign = sorted({*sent, *choose_method(config).shared()} - set(self.share))
        if foreign:
            yield f"the run averages the prompt {foreign[0]!r:.60}, and this site shares only {', '.join(self.share)}"
        privacy, sites = config.privacy, self.min_sites or FEATURE_SITES
        if FEATURES not in self.share and _wants_features(config):
            yield "this site sends no class feature sums, and the run needs them: set priors.prototypes=false"
        elif _wants_features(config) and not (privacy.secure_aggregation and privacy.min_sites >= sites):
            yield (
                f"this site sends class feature sums only under secure aggregation of at least {sites} sites: set "
                f"privacy.secure_aggregation=true and privacy.min_sites={sites}, or priors.prototypes=false"
            )
        if not self.secure_aggregation and (privacy.secure_aggregation or isinstance(request, KeyRequest)):
            yield "this site takes part in no secure aggregation, and the run has them"
        if self.min_sites and not privacy.secure_aggregation:
            yield "this site answers only with privacy.secure_aggregation, and the run has none"
        elif self.min_sites > privacy.min_sites:
            least, there = self.min_sites, privacy.min_sites
            yield f"this site wants sums of at least {counted(least, 'site')}, and privacy.min_sites is {there}"
        if self.min_noise > privacy.noise_multiplier:
            given = privacy.noise_multiplier
            yield f"this site wants privacy.noise_multiplier of at least {self.min_noise:g}, and the run has {given:g}"


def _wants_features(config: RunConfig) -> bool:
    """Whether a run with these settings adds up image features."""
    return (
        config.adapts and config.priors.logit_bias and config.priors.prototypes and not config.privacy.noise_multiplier
    )


@cache
def _shareable() -> tuple[str, ...]:
    """Every name that `--share` takes: what any method averages, and sums of features."""
    methods = (choose_method(RunConfig.from_mapping({"method": name}, "methods")) for name in METHODS)
    return tuple(dict.fromkeys(["visual", "text", *(name for method in methods for name in method.shared()), FEATURES]))


def _refuse_unknown(name: str) -> None:
    if name not in _shareable():
        near = difflib.get_close_matches(name, _shareable(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"share: nothing is called {name!r} (there is: {', '.join(_shareable())}){hint}")


OPENLY = {  # what leaves only where a site also answers without masks
    *(("Selected", name) for name in ("examples", "images", "unchanged")),
    *(("Trained", name) for name in ("shared", "examples", "loss", "checks")),
    *(("Evaluated", name) for name in ("correct", "examples")),
    ("Adapted", "sums"),
    ("Adapted", "refused"),
    ("Estimated", "counts"),
}
IN_SUMS = {("PublicKeys", "keys"), ("PublicKeys", "voucher"), ("KeyShares", "sealed"), ("Unmasked", "shares")}


def _may_leave(kind: str, field: str, consent: Consent) -> bool:
    if consent.min_sites and (kind, field) in OPENLY:
        return False
    return consent.secure_aggregation or not (field == "masked" or (kind, field) in IN_SUMS)


def sent_fields(consent: Consent | None = None) -> Iterator[str]:
    """One line for each field of each answer that the conditions allow; for one without words of its own, its name."""
    for kind in REPLY_TO.values():
        for field in fields(kind):
            if consent and not _may_leave(kind.__name__, field.name, consent):
                continue
            words = WORDS.get((kind.__name__, field.name), "see docs/what-leaves-a-client.md")
            yield f"{kind.__name__}.{field.name}: {words}"
    yield from ALSO
