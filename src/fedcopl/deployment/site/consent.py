"""On what conditions a site answers at all. The settings of a run are the server's; these are the site's own."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...config import RunConfig
from ...errors import ConfigError
from ...messages import Ask, Estimate, Train

USUAL = ("visual",)  # what FedCoPL averages; all else is personal


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
