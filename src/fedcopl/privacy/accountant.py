"""How much was given away: epsilon and delta over all releases with noise on them, by the package dp-accounting.

The unit is one whole site: whether its numbers were in the sums, or zeros in their place. Every release is a Gaussian
mechanism; they are composed by their Renyi divergences, which bound discrete and continuous noise alike. Taking part
in some rounds only is not counted as a gain.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..config import RunConfig
from ..errors import ConfigError
from ..labelers import choose_labeler

UNIT = "one site"
NOISY_STEPS = 3  # exchanges of balance, where each one is paid for with noise


@dataclass(frozen=True)
class Release:
    """One differentially private release: numbers of some clients, sent with noise."""

    of: str  # "counts" or "prompts"
    noise: float  # standard deviation, in units of the sensitivity to one client
    clients: tuple[str, ...]  # the clients in this release


def epsilon_of(noises: Iterable[float], delta: float) -> float:
    """The epsilon of releases with these noises (standard deviation in units of what one site can change)."""
    return _epsilon(tuple(sorted(noises)), delta)


@cache
def _epsilon(noises: tuple[float, ...], delta: float) -> float:
    accounting = _library()
    accountant = accounting.rdp.RdpAccountant()
    for noise in noises:
        accountant.compose(accounting.GaussianDpEvent(noise))
    return float(accountant.get_epsilon(delta))


def noise_for(epsilon: float, delta: float, releases: int) -> float:
    """The least noise with which so many releases cost no more than epsilon."""
    accounting = _library()

    def event(noise: float) -> Any:
        return accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(noise), releases)

    bracket = accounting.ExplicitBracketInterval(1e-6, 1e8)
    return float(accounting.calibrate_dp_mechanism(accounting.rdp.RdpAccountant, event, epsilon, delta, bracket))


def planned_releases(config: RunConfig) -> int:
    """How many releases a site that is always there takes part in: balance once, counts at each refresh, prompts in
    each round."""
    refreshes = -(-config.rounds // config.labels.refresh_every)
    counts = refreshes if choose_labeler(config).cooperative else 0
    balance = NOISY_STEPS if config.adapts and config.priors.logit_bias else 0
    return config.rounds + counts + balance


@dataclass(frozen=True)
class PrivacyStatement:
    """The privacy account of a run so far; without noise there is no epsilon."""

    secure_aggregation: bool  # the server saw sums only
    epsilon: float | None = None  # of the site with the largest loss of privacy
    delta: float | None = None  # as set
    unit: str | None = None  # unit of privacy: whose data is protected
    releases: int | None = None  # with noise on them, of the site that took part most often
    against: str | None = None  # the adversary that the epsilon holds against


def statement(config: RunConfig, releases: Iterable[Release]) -> PrivacyStatement | None:
    """The privacy of a run after these releases; None where all settings of `privacy` are off."""
    privacy = config.privacy
    if not config.is_private:
        return None
    if not privacy.noise_multiplier:
        return PrivacyStatement(privacy.secure_aggregation)
    by_site: dict[str, list[float]] = {}
    for release in releases:
        for site in release.clients:
            by_site.setdefault(site, []).append(release.noise)
    return PrivacyStatement(
        privacy.secure_aggregation,
        epsilon=max((epsilon_of(noises, privacy.delta) for noises in by_site.values()), default=0.0),
        delta=privacy.delta,
        unit=UNIT,
        releases=max(map(len, by_site.values()), default=0),
        against="whoever sees the sums" if privacy.secure_aggregation else "the server and everybody else",
    )


def require_accounting(config: RunConfig) -> None:
    """Say before a run with noise what its account will need at the end."""
    if config.privacy.noise_multiplier:
        _library()


def _library() -> Any:
    try:
        import dp_accounting  # type: ignore[import-untyped]
        from dp_accounting import rdp  # noqa: F401, it becomes `dp_accounting.rdp`
    except ImportError as error:
        raise ConfigError("privacy.noise_multiplier needs more packages: pip install 'fedcopl[privacy]'") from error
    return dp_accounting
