"""Privacy accounting: epsilon and delta over all noisy releases, by the package dp-accounting.

The unit of privacy is one site: neighbouring data sets have its values in the sums, or zeros. Every release is a
Gaussian mechanism; they are composed by their Renyi divergences, which bound discrete and continuous noise alike. There
is no amplification by subsampling.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..config import RunConfig
from ..errors import ConfigError
from ..labelers import choose_labeler

UNIT = "one site"
NOISY_STEPS = 3  # steps of the logit bias with noise


@dataclass(frozen=True)
class Release:
    """One differentially private release: numbers of some clients, sent with noise."""

    of: str  # "counts" or "prompts"
    noise: float  # standard deviation, in units of the sensitivity to one client
    clients: tuple[str, ...]  # the clients in this release


def epsilon_of(noises: Iterable[float], delta: float) -> float:
    """Return the epsilon of releases with these noise multipliers (standard deviation / sensitivity to one site)."""
    return _epsilon(tuple(sorted(noises)), delta)


@cache
def _epsilon(noises: tuple[float, ...], delta: float) -> float:
    accounting = _library()
    accountant = accounting.rdp.RdpAccountant()
    for noise in noises:
        accountant.compose(accounting.GaussianDpEvent(noise))
    return float(accountant.get_epsilon(delta))


def noise_for(epsilon: float, delta: float, releases: int) -> float:
    """Return the smallest noise multiplier with which `releases` releases cost at most epsilon."""
    accounting = _library()

    def event(noise: float) -> Any:
        return accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(noise), releases)

    bracket = accounting.ExplicitBracketInterval(1e-6, 1e8)
    return float(accounting.calibrate_dp_mechanism(accounting.rdp.RdpAccountant, event, epsilon, delta, bracket))


def planned_releases(config: RunConfig) -> int:
    """Return the releases of a site that joins every round: logit bias once, counts per refresh, prompts per round."""
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
    """Return the privacy statement of a run after these releases; None if all settings of `privacy` are off."""
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
    """Raise ConfigError before a run with noise if the accounting package is missing."""
    if config.privacy.noise_multiplier:
        _library()


def _library() -> Any:
    try:
        import dp_accounting  # type: ignore[import-untyped]
        from dp_accounting import rdp  # noqa: F401, it becomes `dp_accounting.rdp`
    except ImportError as error:
        raise ConfigError("privacy.noise_multiplier needs more packages: pip install 'fedcopl[privacy]'") from error
    return dp_accounting
