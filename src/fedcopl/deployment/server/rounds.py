"""The rounds of a real federation at the server, over Flower's grid.

Nothing here needs an image or a label. In addition to the files of every run's folder (`run.folder`) there is
`server.json`: the run's id, how often the server was started, and the number of every site.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...config import RunConfig
from ...errors import NoClientReplied, RunFolderError
from ...federation.client_state import ClientState
from ...federation.server import ServerState
from ...federation.transport import RoundReport
from ...files import write_text
from ...run.build import backbone_name
from ...run.folder import ENDED, RunFolder
from ...run.loop import complete_outcome, round_record, run_rounds
from ...run.progress_reporter import ProgressReporter
from ...run.record import ClientRecord, Measured, Outcome, RefreshRecord, RoundRecord, measured
from ..audit_log import AuditLog
from ..wire.terms import terms_of
from .grid_threads import SiteGrid
from .grid_transport import GridTransport
from .plan import PreparedServer
from .site_registry import KnownSites


@dataclass
class ServerFile:
    """`server.json`: what a restart needs in addition to the checkpoint."""

    path: Path
    run: str
    attempt: int
    known: KnownSites

    @classmethod
    def begin(cls, path: Path, name: str) -> "ServerFile":
        """Count one more start of this run; the first start gives it a unique id."""
        file = cls._read(path) if path.exists() else cls(path, f"{name}-{secrets.token_hex(6)}", 0, KnownSites({}))
        file.attempt += 1
        file.known.keep = file.keep
        file.keep(file.known)
        return file

    @classmethod
    def _read(cls, path: Path) -> "ServerFile":
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            numbers = {str(name): int(number) for name, number in kept["sites"].items()}
            return cls(path, str(kept["run"]), int(kept["starts"]), KnownSites(numbers, dict(kept["folders"])))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else error
            raise RunFolderError(f"{path}: is damaged: {why}") from error

    def keep(self, known: KnownSites) -> None:
        kept = {"run": self.run, "starts": self.attempt, "sites": known.numbers, "folders": known.folders}
        write_text(self.path, json.dumps(kept, indent=1) + "\n")


def serve(
    grid: SiteGrid, prepared: PreparedServer, watcher: ProgressReporter, should_stop: Callable[[], bool] = lambda: False
) -> Outcome:
    """Run the remaining rounds with the sites of this grid, and write the results to the plan's folder."""
    config, classes, plan = prepared.config, prepared.classes, prepared.plan
    with RunFolder(plan.out) as folder:
        checkpoint, server = folder.open(config, resume=plan.resume), prepared.first_state()
        folder.begin(config)
        folder.write_text("classes.txt", "\n".join(classes) + "\n")
        file = ServerFile.begin(folder.path / "server.json", config.name)
        model = backbone_name(config.model.backbone, prepared.clip)
        terms = terms_of(file.run, file.attempt, config, classes, model)
        audit = AuditLog(folder.path)
        sites = GridTransport(grid, terms, file.known, plan.timeouts, watcher, should_stop, audit.write)
        watcher.started(config, len(sites.begin()), checkpoint.server.round if checkpoint else 0)
        recorder = ServerRecorder(config, classes, sites, model)
        with _ending_recorded(folder):
            began = time.monotonic()
            return run_rounds(config, folder, sites, recorder, watcher, began, server, checkpoint).outcome


@contextmanager
def _ending_recorded(folder: RunFolder) -> Iterator[None]:
    """Write the reason why a run ended early to its folder, for `fedcopl status` and `watch`."""
    (folder.path / ENDED).unlink(missing_ok=True)
    try:
        yield
    except NoClientReplied as error:
        folder.write_text(ENDED, f"{error}\n")
        raise
    except RunFolderError as error:  # usually a full disk, where no reason can be written
        raise RunFolderError(
            f"{error}; finished rounds are kept: fix this, then continue with the same command and --resume"
        ) from error


@dataclass(frozen=True)
class ServerRecorder:
    """Records a real federation as far as a server knows it: no true labels, no client's class counts."""

    config: RunConfig
    classes: tuple[str, ...]
    sites: GridTransport
    model: str  # name and fingerprint

    def begin(self, first: RoundReport) -> Outcome:
        first.drops.take(self.sites.take_drops())
        return Outcome(zero_shot=self._measured(first), dropped_before=first.dropped)

    def round(self, server: ServerState, report: RoundReport) -> tuple[RoundRecord, RefreshRecord | None]:
        report.drops.take(self.sites.take_drops())
        return round_record(report, self._measured(report)), None

    def _measured(self, report: RoundReport) -> Measured:
        """Score every known site; one without a reply keeps its row, so that rows do not shift."""
        return measured([report.scores.get(name, (0, 0)) for name in self.sites.known.numbers])

    def complete(self, outcome: Outcome) -> Outcome:
        known = tuple(self.sites.known.numbers)
        return complete_outcome(
            outcome,
            self.config,
            backbone=self.model,
            run_id=self.sites.terms.run,
            sites=known,
            clients=tuple(ClientRecord(name=name) for name in known),
            classes=self.classes,
            template=self.config.model.template,
        )

    def states(self) -> Mapping[str, ClientState]:
        return {}
