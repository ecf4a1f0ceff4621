"""Privacy accounting: epsilon and delta over all noisy releases, by the package dp-accounting.

The unit of privacy is one site: in the neighbouring dataset, its values in the sums are zeros. Every release is a
Gaussian mechanism. Releases are composed by their Renyi divergences, whose bounds hold for discrete and continuous
noise. Amplification by subsampling is not used.
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
    """One differentially private release of some clients' numbers."""

    of: str  # "counts", "sums" (of the priors) or "prompts"
    noise: float  # noise multiplier: standard deviation / sensitivity to one client
    clients: tuple[str, ...]  # the clients in this release


def epsilon_of(noises: Iterable[float], delta: float) -> float:
    """Return the epsilon of releases with the noise multipliers `noises`."""
    return _epsilon(tuple(sorted(noises)), delta)


@cache
def _epsilon(noises: tuple[float, ...], delta: float) -> float:
    accounting = _import_accounting()
    accountant = accounting.rdp.RdpAccountant()
    for noise in noises:
        accountant.compose(accounting.GaussianDpEvent(noise))
    return float(accountant.get_epsilon(delta))


def noise_for(epsilon: float, delta: float, releases: int) -> float:
    """Return the smallest noise multiplier for which this number of releases costs at most epsilon."""
    accounting = _import_accounting()

    def event(noise: float) -> Any:
        return accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(noise), releases)

    bracket = accounting.ExplicitBracketInterval(1e-6, 1e8)
    return float(accounting.calibrate_dp_mechanism(accounting.rdp.RdpAccountant, event, epsilon, delta, bracket))


def planned_releases(config: RunConfig) -> int:
    """Return the number of releases of a site that takes part in every round.

    Prompts are released in each round, counts at each refresh, and sums for the logit bias once.
    """
    refreshes = -(-config.rounds // config.labels.refresh_every)
    counts = refreshes if choose_labeler(config).cooperative else 0
    sums = NOISY_STEPS if config.uses_priors and config.priors.logit_bias else 0
    return config.rounds + counts + sums


@dataclass(frozen=True)
class PrivacyStatement:
    """The privacy guarantee of a run so far; without noise there is no epsilon."""

    secure_aggregation: bool  # the server saw sums only
    epsilon: float | None = None  # of the site with the largest loss of privacy
    delta: float | None = None  # from the settings
    unit: str | None = None  # unit of privacy: whose data epsilon protects
    releases: int | None = None  # with noise, of the site with the most releases
    against: str | None = None  # the adversary against whom epsilon holds


def privacy_statement(config: RunConfig, releases: Iterable[Release]) -> PrivacyStatement | None:
    """Return the privacy guarantee of a run after these releases; None if all settings of `privacy` are off."""
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
        against="an observer of the sums" if privacy.secure_aggregation else "the server and every other party",
    )


def require_accounting(config: RunConfig) -> None:
    """Raise ConfigError before a run with noise if the accounting package is missing."""
    if config.privacy.noise_multiplier:
        _import_accounting()


def _import_accounting() -> Any:
    try:
        import dp_accounting  # type: ignore[import-untyped]
        from dp_accounting import rdp  # noqa: F401  (makes `dp_accounting.rdp` available)
    except ImportError as error:
        raise ConfigError("privacy.noise_multiplier needs more packages: pip install 'fedcopl[privacy]'") from error
    return dp_accounting
