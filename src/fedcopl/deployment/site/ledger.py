"""What a site remembers over all runs: when each began, and how much was given away with noise on it.

A server names its runs. What is counted here is counted whatever a run is called, and whether or not its folder is
still there.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ...config import RunConfig
from ...errors import RunFolderError
from ...federation.prior_estimation import prior_steps
from ...files import make_private_folder, write_private
from ...labelers import choose_labeler
from ...messages import Adapt, Estimate, Request, Train, digest
from ...plurals import counted
from ...privacy.accountant import epsilon_of
from ...privacy.mask_session import needed
from ..wire.terms import Refused

LEDGER = "ledger.json"
DAY = 24 * 3600.0
DELTA = 1e-5  # the site's own: one that the server chose could make any epsilon look small


@dataclass(frozen=True)
class Entries:
    """As they are kept."""

    runs: dict[str, float] = field(default_factory=dict)  # run -> when it began here
    releases: dict[str, float] = field(default_factory=dict)  # what was answered -> the noise on it


@dataclass(frozen=True)
class SiteLedger:
    """The ledger of a site's folder."""

    folder: Path
    now: Callable[[], float] = time.time

    def refuse_more(self, run: str, most: float) -> None:
        """`Refused` if as many other runs as the site puts up with have begun within a day."""
        recent = [began for name, began in self.read().runs.items() if name != run and began > self.now() - DAY]
        if len(recent) >= most:
            raise Refused(
                f"{counted(len(recent), 'run has', 'runs have')} begun within a day, and this site's limit is {most:g}"
            )

    def begin(self, run: str) -> None:
        """Enter a run."""
        entries = self.read()
        self._write(replace(entries, runs={run: self.now(), **entries.runs}))

    def charge(self, release: str, noise: float, budget: float) -> None:
        """Enter an answer before it is given; `Refused` if it is more than the budget of all runs has left."""
        entries = self.read()
        if release in entries.releases:
            return  # the same bits again
        releases = {**entries.releases, release: noise}
        if math.isfinite(budget) and epsilon_of(releases.values(), DELTA) > budget:
            raise Refused(f"one more answer would exceed this site's budget of epsilon {budget:g} over all runs")
        self._write(replace(entries, releases=releases))

    @property
    def epsilon(self) -> float:
        """Given away so far, at `DELTA`."""
        noises = self.read().releases.values()
        return epsilon_of(noises, DELTA) if noises else 0.0

    def read(self) -> Entries:
        file = self.folder / LEDGER
        if not file.exists():
            return Entries()
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            return Entries(
                {str(run): float(began) for run, began in kept["runs"].items()},
                {str(name): float(noise) for name, noise in kept["releases"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunFolderError(f"{file}: is damaged: {error}") from error

    def _write(self, entries: Entries) -> None:
        make_private_folder(self.folder)
        write_private(self.folder / LEDGER, json.dumps(asdict(entries), indent=1).encode())


def release_of(run: str, request: Request, config: RunConfig, session: str) -> tuple[str, float] | None:
    """The name of what an answer gives away, and the least noise that is on it; None: it has none, or tells nothing.

    In a secure aggregation, named by `session`, every site adds its part of the noise, and some sites may get lost with
    theirs: counted is what is left if as many do as the sum bears.
    """
    privacy = config.privacy
    if (
        not privacy.noise_multiplier
        or not isinstance(request, Adapt | Estimate | Train)
        or _tells_nothing(request, config)
    ):
        return None
    peers = len(request.peers)
    stay = max(needed(peers, privacy.threshold), privacy.min_sites) if peers else 1
    share = min(stay / max(peers, 1), 1.0)
    return f"{run} {digest(request)} {session}".strip(), privacy.noise_multiplier * math.sqrt(share)


def _tells_nothing(request: Adapt | Estimate | Train, config: RunConfig) -> bool:
    if isinstance(request, Adapt):
        return request.step >= prior_steps(config)
    return isinstance(request, Estimate) and not choose_labeler(config).cooperative
