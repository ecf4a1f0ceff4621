"""The ledger of a site over all runs: when each began, and the privacy budget that it spent.

A server names its runs. The ledger counts them whatever their names, and whether or not their folders still exist.
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
from ..wire.terms import Refused

_LEDGER = "ledger.json"
_DAY = 24 * 3600.0
_DELTA = 1e-5  # set by the site: with one set by the server any epsilon could look small


@dataclass(frozen=True)
class _Entries:
    """The content of the file."""

    runs: dict[str, float] = field(default_factory=dict)  # run -> when it began here
    releases: dict[str, float] = field(default_factory=dict)  # reply -> its noise multiplier


@dataclass(frozen=True)
class SiteLedger:
    """The ledger of a site's folder."""

    folder: Path
    now: Callable[[], float] = time.time

    def refuse_more(self, run: str, limit: float) -> None:
        """Raise `Refused` if `limit` other runs have begun within a day."""
        recent = [began for name, began in self.read().runs.items() if name != run and began > self.now() - _DAY]
        if len(recent) >= limit:
            raise Refused(
                f"{counted(len(recent), 'run has', 'runs have')} begun within a day, and this site's limit is {limit:g}"
            )

    def begin(self, run: str) -> None:
        """Enter a run."""
        entries = self.read()
        self._write(replace(entries, runs={run: self.now(), **entries.runs}))

    def charge(self, release: str, noise: float, budget: float) -> None:
        """Enter a reply before it is sent; `Refused` if it exceeds the budget of all runs."""
        entries = self.read()
        if release in entries.releases:
            return  # the same reply again costs nothing
        releases = {**entries.releases, release: noise}
        if math.isfinite(budget) and epsilon_of(releases.values(), _DELTA) > budget:
            raise Refused(f"one more reply would exceed this site's budget of epsilon {budget:g} over all runs")
        self._write(replace(entries, releases=releases))

    @property
    def epsilon(self) -> float:
        """Epsilon spent so far, at `_DELTA`."""
        noises = self.read().releases.values()
        return epsilon_of(noises, _DELTA) if noises else 0.0

    def read(self) -> _Entries:
        file = self.folder / _LEDGER
        if not file.exists():
            return _Entries()
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            return _Entries(
                {str(run): float(began) for run, began in kept["runs"].items()},
                {str(name): float(noise) for name, noise in kept["releases"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunFolderError(f"{file}: is damaged: {error}") from error

    def _write(self, entries: _Entries) -> None:
        make_private_folder(self.folder)
        write_private(self.folder / _LEDGER, json.dumps(asdict(entries), indent=1).encode())


def release_of(run: str, request: Request, config: RunConfig, session: str) -> tuple[str, float] | None:
    """Return the name of a reply with noise, and its noise multiplier; None: the reply has no private content.

    In a secure aggregation, named by `session`, every site adds its share of the noise; a sum that lacks a site cannot
    be unmasked.
    """
    privacy = config.privacy
    if not privacy.noise_multiplier or not isinstance(request, Adapt | Estimate | Train):
        return None
    if isinstance(request, Adapt) and request.step >= prior_steps(config):
        return None
    if isinstance(request, Estimate) and not choose_labeler(config).cooperative:
        return None
    return f"{run} {digest(request)} {session}".strip(), privacy.noise_multiplier
