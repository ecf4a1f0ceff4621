"""The plan of a server, checked before any site may join, and its rounds over Flower's grid.

A server needs no image and no label. In addition to the files of every run's folder (`run.folder`) it writes
`server.json`: the id of the run, how often the server was started, and the number of every site.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from flwr.serverapp import Grid

from ...algorithm import FloatArray
from ...clip.frozen_clip import Clip
from ...config import RunConfig
from ...data.dataset import TEMPLATE, read_classes
from ...errors import ConfigError, NoClientReplied, RunFolderError
from ...federation.client_state import ClientState
from ...federation.server import ServerState, check_privacy_settings
from ...federation.transport import RoundReport
from ...methods import choose_method, with_effective_rounds
from ...privacy.accountant import require_accounting
from ...run.build import backbone_name, build_clip, first_state, known_class_prior
from ...run.folder import ENDED, RunFolder
from ...run.loop import complete_outcome, round_record, run_rounds
from ...run.previous_run import PreviousRun, adapt_previous_run, read_previous_run, require_previous_run, with_reference
from ...run.progress_reporter import ProgressReporter
from ...run.record import ClientRecord, Measured, Outcome, RefreshRecord, RoundRecord, measured
from ..audit_log import AuditLog
from ..terms import terms_of
from .grid_transport import GridThreads, GridTransport, KnownSites, Timeouts


@dataclass(frozen=True)
class ServerPlan:
    """Settings, classes and folders of one run of a server."""

    config: RunConfig
    classes_file: Path | None  # None in a simulation, where the dataset has its classes
    out: Path
    timeouts: Timeouts
    resume: bool = False
    previous_run: Path | None = None  # folder of the finished run that this run continues


@dataclass(frozen=True)
class PreparedServer:
    """A plan whose classes, model and previous run are loaded."""

    plan: ServerPlan
    config: RunConfig
    classes: tuple[str, ...]
    clip: Clip
    class_prior: FloatArray | None = None  # over all sites
    previous_run: PreviousRun | None = None  # None also when resuming after the first round

    @classmethod
    def prepare(cls, plan: ServerPlan) -> "PreparedServer":
        """Load classes, model and previous run, and raise every error that can be detected before the run."""
        if plan.classes_file is None:
            raise ConfigError("classes: is missing; give a file of class names, one per line, the same at all sites")
        previous_run = None if plan.previous_run is None else read_previous_run(plan.previous_run)
        listed = read_classes(plan.classes_file)
        classes = tuple(listed.names)
        # The prompt templates are written out: sites must not choose their own.
        template = (plan.config.model.template or TEMPLATE) + listed.synonyms
        model = plan.config.model.model_copy(update={"template": template})
        config = with_reference(with_effective_rounds(plan.config.model_copy(update={"model": model})), previous_run)
        require_accounting(config)
        method = choose_method(config)
        check_privacy_settings(config, method.neighbours(), method.full_first_round)
        prior = known_class_prior(config, classes)
        with RunFolder(plan.out) as folder:
            if folder.open(config, resume=plan.resume) is None:
                require_previous_run(config, previous_run)
        clip = build_clip(config.model)
        prepared = cls(plan, config, classes, clip, prior, previous_run)
        prepared.first_state()  # raises an error if the previous run does not fit
        return prepared

    def first_state(self) -> ServerState:
        count = len(self.classes)
        start = choose_method(self.config).start(self.clip, count)
        state = replace(first_state(self.config, start, count, self.clip.feature_size), class_prior=self.class_prior)
        if self.previous_run is None:
            return state
        adapted = adapt_previous_run(self.previous_run, self.config, self.clip, self.classes, start)
        return replace(state, shared=adapted.shared)


def serve(
    grid: Grid | GridThreads,
    prepared: PreparedServer,
    progress: ProgressReporter,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run the remaining rounds with the sites of this grid, and write the results to the plan's folder."""
    config, classes, plan = prepared.config, prepared.classes, prepared.plan
    with RunFolder(plan.out) as folder:
        checkpoint, server = folder.open(config, resume=plan.resume), prepared.first_state()
        folder.begin(config)
        folder.write_text("classes.txt", "\n".join(classes) + "\n")
        known = KnownSites.at_start(folder.path / "server.json", config.name)
        model = backbone_name(config.model.backbone, prepared.clip)
        terms = terms_of(known.run, known.starts, config, classes, model)
        audit = AuditLog(folder.path)
        transport = GridTransport(grid, terms, known, plan.timeouts, progress, should_stop, audit.write)
        progress.started(config, len(transport.begin()), checkpoint.server.round if checkpoint else 0)
        recorder = ServerRecorder(config, classes, transport, model)
        (folder.path / ENDED).unlink(missing_ok=True)
        try:
            began = time.monotonic()
            return run_rounds(config, folder, transport, recorder, progress, began, server, checkpoint).outcome
        except NoClientReplied as error:
            folder.write_text(ENDED, f"{error}\n")  # for `fedcopl status` and `watch`
            raise
        except RunFolderError as error:  # usually a full disk, to which no reason can be written
            raise RunFolderError(
                f"{error}; finished rounds are kept: fix this, then continue with the same command and --resume"
            ) from error


@dataclass(frozen=True)
class ServerRecorder:
    """Records what a server knows about a real federation: neither true labels nor class counts of single sites."""

    config: RunConfig
    classes: tuple[str, ...]
    transport: GridTransport
    model: str  # name and fingerprint

    def begin(self, first: RoundReport) -> Outcome:
        first.drops.add_all(self.transport.take_drops())
        return Outcome(zero_shot=self._measured(first), dropped_before=first.dropped)

    def round(self, server: ServerState, report: RoundReport) -> tuple[RoundRecord, RefreshRecord | None]:
        report.drops.add_all(self.transport.take_drops())
        return round_record(report, self._measured(report)), None

    def _measured(self, report: RoundReport) -> Measured:
        """Return the accuracies of all known sites; a site without a reply has (0, 0), so that rows do not shift."""
        return measured([report.scores.get(name, (0, 0)) for name in self.transport.known_sites.numbers])

    def complete(self, outcome: Outcome) -> Outcome:
        known = tuple(self.transport.known_sites.numbers)
        return complete_outcome(
            outcome,
            self.config,
            backbone=self.model,
            run_id=self.transport.terms.run,
            sites=known,
            clients=tuple(ClientRecord(name=name) for name in known),
            classes=self.classes,
            template=self.config.model.template,
        )

    def states(self) -> Mapping[str, ClientState]:
        return {}
