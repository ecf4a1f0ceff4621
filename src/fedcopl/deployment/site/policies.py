"""A site's own conditions for a run: limits on its cost, consent to what leaves the site, and approval by its people.

The server sets the settings of a run; each site sets these conditions, and `pipeline` applies them. The list of what
leaves a site is generated from the fields of the messages, so it is complete.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from ...config import RunConfig, read_settings
from ...data.dataset import TEMPLATE
from ...errors import ConfigError, did_you_mean
from ...files import make_private_folder, write_private
from ...labelers import choose_labeler
from ...messages import REPLY_TO, Estimate, KeyRequest, Request, Train
from ...methods import METHODS, choose_method, run_title
from ...plurals import counted
from ...privacy.accountant import planned_releases
from ...run.folder import file_name
from ..message_format import one_line
from ..terms import flat_settings

_FEATURES = "features"  # value of `share` for sums of image features, in total and by class
DEFAULT_SHARE = ("visual",)  # the prompt that FedCoPL averages; class feature sums are opt-in
_FEATURE_SITES = 3  # minimum of a secure aggregation of class feature sums, without `--min-sites`
MIN_IMAGES = 5  # sums over fewer images may identify a person
NEVER_SENT = "images, file names, labels, predictions, personal prompts, the private key, site.secret"
_FIELD_TEXTS = {  # (reply, field) -> its content
    ("Adapted", "sums"): "sums of posteriors, logits and evidence over its images, for the priors",
    ("Adapted", "masked"): "the same sums under masks instead, if the run has secure aggregation; with "
    "`--share features` also sums of image features, in total and by class, and of products of two features",
    ("Adapted", "refused"): "whether the priors contradict its most confident images; omitted if the run is private",
    ("Estimated", "counts"): "number of confident images of each class, at each refresh",
    ("Estimated", "masked"): "its class counts under masks instead, if the run has secure aggregation",
    ("Selected", "examples"): "number of images selected for training; omitted if the run is private",
    ("Selected", "images"): "number of its images; omitted if the run is private",
    ("Selected", "unchanged"): "number of images labelled as at its last refresh; omitted if the run is private",
    ("Trained", "shared"): "the prompts that are averaged (for FedCoPL the visual prompt), after each round",
    ("Trained", "examples"): "number of images it trained on",
    ("Trained", "loss"): "the training loss",
    ("Trained", "checks"): "whether training helps, on its hold-out images; omitted with noise",
    ("Trained", "masked"): "its prompts, number of images and loss under masks instead, if the run has secure "
    "aggregation",
    ("Evaluated", "correct"): "correctly classified test images; 0 without labels, or if it requires masks or noise",
    ("Evaluated", "examples"): "number of labelled test images; 0 likewise",
    ("PublicKeys", "keys"): "public keys made for one secure aggregation",
    ("PublicKeys", "voucher"): "its public key, and its signature of these keys, for the other sites",
    ("KeyShares", "sealed"): "shares of the secrets behind its masks, encrypted for the other sites",
    ("Unmasked", "shares"): "shares that remove the masks of a sum, never those of one site's numbers",
}
_ALSO_SENT = (
    "with each reply a random id of its folder, by which the server detects another process with the same key",
    "its name and its public key",
    "with a refusal its reason: a condition, the site's version, the digests of its classes and of its model, or only "
    "the kind of error",
    "the time that each reply takes, which hints at the number of its images, also in secure aggregation",
)
_PLAIN_FIELDS = {  # not sent by a site that requires secure aggregation
    *(("Selected", name) for name in ("examples", "images", "unchanged")),
    *(("Trained", name) for name in ("shared", "examples", "loss", "checks")),
    *(("Evaluated", name) for name in ("correct", "examples")),
    ("Adapted", "sums"),
    ("Adapted", "refused"),
    ("Estimated", "counts"),
}
_PENDING = "pending"  # folder with the settings of runs that wait for approval
_NOT_COMPARED = ("name", "previous_run")  # name of a run, and the run whose prompts a site starts from
ApprovalPrompt = Callable[[str, list[str]], bool | None]
"""Shows the name of a run and its description, and asks for approval; None: no terminal."""
Approval = Callable[[str, RunConfig], str | None]
"""Returns the reason why the site does not take part in a run of this name and settings; None: it takes part."""


@dataclass(frozen=True)
class Limits:
    """The site's limits on the cost of a run; `docs/operations.md` has the same list."""

    rounds: float = 1000  # of a run
    epochs: float = 100  # of training in a round
    batch: float = 512  # images in one training step
    prompts: float = 64  # vectors of a visual prompt, or of a text prompt: memory grows with them
    template: float = 300  # characters of the template for class names
    runs: float = 20  # started within a day
    restarts: float = 3  # repetitions of a round with other requests
    seconds: float = 3600  # for one reply
    disk: float = 10  # GB of all runs at this site: beyond, no new run starts
    epsilon: float = math.inf  # privacy budget over all runs; if finite, every reply needs noise

    def __post_init__(self) -> None:
        for limit in fields(self):
            if not getattr(self, limit.name) >= 0:  # also nan
                raise ConfigError(f"--limit {limit.name}: must be a number >= 0")

    @classmethod
    def from_pairs(cls, pairs: Iterable[str]) -> "Limits":
        """Parse `name=number`, as in `--limit epochs=200`."""
        names, limits = [limit.name for limit in fields(cls)], {}
        for pair in pairs:
            name, number = (part.strip() for part in pair.partition("=")[::2])
            if name not in names:
                raise ConfigError(f"--limit {pair}: there is no such limit (choose from: {', '.join(names)})")
            try:
                limits[name] = float(number)
            except ValueError as error:
                raise ConfigError(f"--limit {pair}: write it as {name}=NUMBER") from error
        return cls(**limits)

    def objections(self, config: RunConfig) -> Iterator[str]:
        """Yield the limits that a run with these settings exceeds."""
        model = config.model
        for name, setting, value in (
            ("rounds", "rounds", config.rounds),
            ("epochs", "train.epochs", config.train.epochs),
            ("batch", "train.batch", config.train.batch),
            ("prompts", "model.visual_prompts", model.visual_prompts),
            ("prompts", "model.text_prompts", model.text_prompts),
            ("template", "model.template", len(model.template)),
        ):
            if value > getattr(self, name):
                unit = " characters" * (name == "template")
                yield f"{setting} is {value:,}{unit}, and this site's limit is {getattr(self, name):,g}"
        if math.isfinite(self.epsilon) and not config.privacy.noise_multiplier:
            yield "this site has an epsilon budget and requires privacy.noise_multiplier, and the run has none"


@dataclass(frozen=True)
class Consent:
    """The data that may leave a site, and the privacy that a run must have."""

    share: tuple[str, ...] = DEFAULT_SHARE  # prompts that may leave, and `features`
    min_sites: int = 0  # above 0: secure aggregation over at least this many sites is required
    min_noise: float = 0.0  # minimum of `privacy.noise_multiplier`
    min_images: int = MIN_IMAGES  # behind an update, a sum for the priors or a class feature sum
    secure_aggregation: bool = True  # False: the site takes part in none

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ConfigError("share: name at least one kind of prompts; without one a site cannot take part")
        for name in self.share:
            if name not in _shareable():
                hint = did_you_mean(name, _shareable())
                raise ConfigError(f"share: {name!r} is unknown (choose from: {', '.join(_shareable())}){hint}")
        if min(self.min_sites, self.min_images) < 0 or not 0 <= self.min_noise < math.inf:  # also nan
            raise ConfigError("min-sites, min-noise, min-images: must be numbers >= 0")
        if self.min_sites and not self.secure_aggregation:
            raise ConfigError(
                "min-sites: needs secure aggregation, which no-secure-aggregation disables; use only one of them"
            )

    @property
    def prompts(self) -> tuple[str, ...]:
        return tuple(name for name in self.share if name != _FEATURES)

    def __str__(self) -> str:
        features = " but no class feature sums"
        if _FEATURES in self.share:
            sites = self.min_sites or _FEATURE_SITES
            features = f" and class feature sums (secure aggregation of at least {counted(sites, 'site')})"
        if not self.secure_aggregation:
            aggregation = "without secure aggregation"
        elif self.min_sites:
            aggregation = f"only in secure aggregation over at least {counted(self.min_sites, 'site')}"
        else:
            aggregation = "with or without secure aggregation"
        noise = f", with noise of at least {self.min_noise:g}" if self.min_noise else ""
        images = f", in updates and sums of at least {counted(self.min_images, 'image')}"
        accuracy = "" if self.reports_accuracy else ", and does not report its test accuracy"
        return f"it shares {', '.join(self.prompts)} prompts{features}, {aggregation}{noise}{images}{accuracy}"

    @property
    def reports_accuracy(self) -> bool:
        """Whether the site reports its test accuracy, which has neither masks nor noise."""
        return not self.min_sites and not self.min_noise

    def objections(self, request: Request, config: RunConfig) -> Iterator[str]:
        """Yield the conditions that a request in a run with these settings does not meet."""
        prompts = request.shared if isinstance(request, Estimate | Train) else ()
        unshared = sorted({*prompts, *choose_method(config).shared()} - set(self.share))
        if unshared:
            yield f"the run averages the prompt {unshared[0]!r:.60}, and this site shares only {', '.join(self.share)}"
        privacy = config.privacy
        sites = self.min_sites or _FEATURE_SITES
        if _FEATURES not in self.share and sends_features(config):
            yield "this site sends no class feature sums, and the run needs them: set priors.prototypes=false"
        elif sends_features(config) and not (privacy.secure_aggregation and privacy.min_sites >= sites):
            yield (
                f"this site sends class feature sums only under secure aggregation of at least {counted(sites, 'site')}"
                f": set privacy.secure_aggregation=true and privacy.min_sites={sites}, or priors.prototypes=false"
            )
        if not self.secure_aggregation and (privacy.secure_aggregation or isinstance(request, KeyRequest)):
            yield "this site does not allow secure aggregation, which the run uses"
        if self.min_sites and not privacy.secure_aggregation:
            yield "this site requires privacy.secure_aggregation, and the run has none"
        elif self.min_sites > privacy.min_sites:
            least, offered = self.min_sites, privacy.min_sites
            yield f"this site requires sums over at least {counted(least, 'site')}, and privacy.min_sites is {offered}"
        if self.min_noise > privacy.noise_multiplier:
            noise = privacy.noise_multiplier
            yield f"this site requires privacy.noise_multiplier >= {self.min_noise:g}, and the run has {noise:g}"


def sends_features(config: RunConfig) -> bool:
    """Return whether sites send class feature sums in a run with these settings."""
    priors = config.priors
    return config.uses_priors and priors.logit_bias and priors.prototypes and not config.privacy.noise_multiplier


@cache
def _shareable() -> tuple[str, ...]:
    """Return the values of `--share`: the prompts that any method averages, and `features`."""
    methods = (choose_method(RunConfig.from_mapping({"method": name}, "methods")) for name in METHODS)
    prompts = (name for method in methods for name in method.shared())
    return tuple(dict.fromkeys(["visual", "text", *prompts, _FEATURES]))


def sent_summary(consent: Consent) -> tuple[str, ...]:
    """Return five lines on what leaves a site: by default, with class feature sums, and in private runs."""
    least, sites = counted(consent.min_images, "image"), counted(consent.min_sites or _FEATURE_SITES, "site")
    does = "does" if _FEATURES in consent.share else "does not"
    return (
        f"After each round: the {' and '.join(consent.prompts)} prompts, trained on at least {least}, the number of "
        "images, the loss, and the losses of its holdout.",
        "At a refresh: the number of confident images of each class; before the first one also sums of class "
        f"probabilities and logits over all images, at least {least}, for the priors.",
        "If it has labelled test images: how many of them are classified correctly, by a model that its hold-out check "
        "accepted.",
        f"Only with --share features, which this site {does} allow: sums of image features, in total and "
        f"by class, and of products of two features. Each sum is over at least {least}; secure aggregation is over "
        f"at least {sites}, the same sites in all runs.",
        "In runs with secure aggregation the server can read only sums over sites; with noise each reply is counted in "
        "this site's own privacy budget, and no feature sums are sent.",
    )


def sent_fields(consent: Consent | None = None) -> Iterator[str]:
    """Yield one line for each field of each reply that the consent allows."""
    for kind in REPLY_TO.values():
        for field in fields(kind):
            key = (kind.__name__, field.name)
            secure_only = field.name == "masked" or kind.__name__ in ("PublicKeys", "KeyShares", "Unmasked")
            if consent and consent.min_sites and key in _PLAIN_FIELDS:
                continue
            if consent and secure_only and not consent.secure_aggregation:
                continue
            yield f"{kind.__name__}.{field.name}: {_FIELD_TEXTS.get(key, 'see docs/privacy.md')}"
    yield from _ALSO_SENT


def choose_approval(accept: str, folder: Path, prompt: ApprovalPrompt, notify: Callable[[str], None]) -> Approval:
    """Return the approval for a value of `--accept`: `ask`, `always`, or a file of settings."""
    if accept == "ask":
        return _ApprovalAtTerminal(folder, prompt, notify)
    if accept == "always":
        return approve_all
    if not Path(accept).is_file():
        raise ConfigError(f"--accept {accept}: there is no such file; use ask, always, or a file of accepted settings")
    return _approval_by_file(Path(accept))


def approve_all(run: str, config: RunConfig) -> None:
    """Take part in every run that meets the consent and the limits."""


def _approval_by_file(file: Path) -> Approval:
    """Return the approval of all runs with the settings of a file, whatever their name and previous run."""

    def read_accepted() -> dict[str, object]:
        return _comparable_settings(RunConfig.from_mapping(read_settings(file), str(file)))

    def objection(run: str, config: RunConfig) -> str | None:
        accepted, settings = read_accepted(), _comparable_settings(config)
        names = sorted(name for name in {*accepted, *settings} if accepted.get(name) != settings.get(name))
        if not names:
            return None
        return f"this site has accepted other settings: {', '.join(names[:5])}{' and more' * (len(names) > 5)}"

    read_accepted()  # errors in the file are raised when the site starts
    return objection


def _comparable_settings(config: RunConfig) -> dict[str, object]:
    flat: dict[str, object] = {**flat_settings(config), "model.template": config.model.template or TEMPLATE}
    return {name: value for name, value in flat.items() if name not in _NOT_COMPARED}


@dataclass
class _ApprovalAtTerminal:
    """Takes part in runs that are approved at the terminal; without a terminal, prints how to approve them."""

    folder: Path  # of the site
    prompt: ApprovalPrompt
    notify: Callable[[str], None]  # prints a line at the site
    _declined: str = ""

    def __call__(self, run: str, config: RunConfig) -> str | None:
        if self._declined == run:
            return "this site has declined this run"
        make_private_folder(self.folder / _PENDING)
        file = self.folder / _PENDING / f"{file_name(run)}.toml"
        write_private(file, config.to_toml().encode())
        is_approved = self.prompt(one_line(run), list(_describe_run(config)))
        if is_approved is None:
            self.notify(f"run {one_line(run)} needs your approval: read {file}, then join with --accept {file}")
            return "this site has not approved this run yet; after its approval, continue with --resume"
        file.unlink(missing_ok=True)
        if not is_approved:
            self._declined = run
            return "this site has declined this run"
        return None


def _describe_run(config: RunConfig) -> Iterator[str]:
    """Yield lines that describe a run with these settings, and what leaves a site."""
    method, privacy = choose_method(config), config.privacy
    aggregation = "without secure aggregation"
    if privacy.secure_aggregation:
        aggregation = f"in secure aggregation over at least {counted(privacy.min_sites, 'site')}"
    aggregation += f", with noise of {privacy.noise_multiplier:g}" if privacy.noise_multiplier else ""
    yield f"{counted(config.rounds, 'round')} of {run_title(config)}, {counted(config.train.epochs, 'epoch')} each"
    yield f"prompts sent after each round: {', '.join(method.averaged()) or 'none'}, {aggregation}"
    refreshes = -(-config.rounds // config.labels.refresh_every)
    counts = f"at {counted(refreshes, 'refresh')}, {aggregation}" if choose_labeler(config).cooperative else "none"
    yield f"class counts of confident images sent: {counts}"
    if config.uses_priors and config.priors.logit_bias:
        features = ", and image features by class" * sends_features(config)
        yield f"sums for the priors sent: posteriors{features}, {aggregation}"
    if privacy.noise_multiplier:
        yield f"replies with noise in total: {planned_releases(config)} (`fedcopl privacy` prints the epsilon)"
    yield from (one_line(f"{name} = {value}") for name, value in flat_settings(config).items() if name != "name")
