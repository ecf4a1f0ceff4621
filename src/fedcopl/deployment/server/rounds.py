"""The server's side of a real federation: rounds over a grid, and what an operator can watch of them.

Nothing here needs an image or a label. Beside the files of every run's folder (`run.folder`) there is `server.json`:
the name the run has for its sites, how often the server was started, and the number of every site.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from ...algorithm.metrics import Score
from ...clip.frozen_clip import Clip
from ...config import RunConfig
from ...data.classes import clean_all, read_classes
from ...data.records import TEMPLATE
from ...errors import ConfigError, NoClientAnswered, RunFolderError
from ...federation.client import ClientState
from ...federation.seam import RoundReport
from ...federation.server import ServerState, refuse_privacy
from ...files import write_text
from ...methods import choose_method
from ...privacy.accountant import require_accounting
from ...run.build import backbone_name, build_clip, first_state
from ...run.folder import ENDED, RunFolder
from ...run.loop import Play, round_record, versions
from ...run.record import ClientRecord, Outcome, RefreshRecord, RoundRecord, measured
from ...run.watcher import Watcher
from ..wire.terms import terms_of
from .grid_clients import GridClients
from .plan import ServerPlan
from .roster import Known


@dataclass
class ServerFile:
    """`server.json`: what must survive a restart beside the checkpoint."""

    path: Path
    run: str
    attempt: int
    known: Known

    @classmethod
    def begin(cls, path: Path, name: str) -> "ServerFile":
        """One more start of this run; the first gives it a name that no other run has."""
        first: dict[str, Any] = {"run": f"{name}-{secrets.token_hex(6)}", "starts": 0, "sites": {}, "homes": {}}
        kept = _read_json(path) if path.exists() else first
        file = cls(path, kept["run"], kept["starts"] + 1, Known(kept["sites"], kept["homes"]))
        file.known.keep = file.keep
        file.keep(file.known)
        return file

    def keep(self, known: Known) -> None:
        kept = {"run": self.run, "starts": self.attempt, "sites": known.numbers, "homes": known.homes}
        write_text(self.path, json.dumps(kept, indent=1) + "\n")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}: is damaged: {error}") from error
    return kept


@dataclass(frozen=True)
class PreparedServer:
    """A plan with everything in it looked at and loaded, before anybody is let in."""

    plan: ServerPlan
    config: RunConfig
    classes: tuple[str, ...]
    clip: Clip

    @classmethod
    def prepare(cls, plan: ServerPlan) -> "PreparedServer":
        """Every mistake that can be found beforehand is found here."""
        classes, config = server_classes(plan), server_config(plan)
        require_accounting(config)
        refuse_privacy(config, choose_method(config).neighbours())
        clip = build_clip(config.model)
        with RunFolder(plan.out) as place:
            place.open(config, resume=plan.resume)
        return cls(plan, config, classes, clip)

    def first_state(self) -> ServerState:
        count = len(self.classes)
        return first_state(self.config, choose_method(self.config).start(self.clip, count), count)


def serve(
    grid: Grid, prepared: PreparedServer, watcher: Watcher, should_stop: Callable[[], bool] = lambda: False
) -> Outcome:
    """Play the rounds that are left with the sites of this grid, and write everything into the plan's folder."""
    config, classes, plan = prepared.config, prepared.classes, prepared.plan
    with RunFolder(plan.out) as place:
        checkpoint, server = place.open(config, resume=plan.resume), prepared.first_state()
        place.begin(config)
        place.write_text("classes.txt", "\n".join(classes) + "\n")
        file = ServerFile.begin(place.path / "server.json", config.name)
        model = backbone_name(config.model.backbone, prepared.clip)
        terms = terms_of(file.run, file.attempt, config, classes, model)
        sites = GridClients(grid, terms, file.known, plan.patience, watcher, should_stop)
        watcher.started(config, len(sites.begin()), checkpoint.server.round if checkpoint else 0)
        books = ServerBooks(config, classes, tuple(server.shared), sites)
        with _why_it_ends(place):
            return Play(config, place, sites, books, watcher, time.monotonic()).play(server, checkpoint).outcome


@contextmanager
def _why_it_ends(place: RunFolder) -> Iterator[None]:
    """Write down why the sites could not go on, for `fedcopl status` and `watch`; the terminal may be gone by then."""
    (place.path / ENDED).unlink(missing_ok=True)
    try:
        yield
    except NoClientAnswered as error:
        place.write_text(ENDED, f"{error}\n")
        raise


def server_classes(plan: ServerPlan) -> tuple[str, ...]:
    if plan.classes_file is None:
        raise ConfigError("classes: name the file with the class names, one a line; the sites need the same one")
    return clean_all(read_classes(plan.classes_file), plan.classes_file)


def server_config(plan: ServerPlan) -> RunConfig:
    """The settings with the sentence written out: sites must not choose their own."""
    model = plan.config.model.model_copy(update={"template": plan.config.model.template or TEMPLATE})
    return plan.config.model_copy(update={"model": model})


@dataclass(frozen=True)
class ServerBooks:
    """Writes a real federation down, as far as a server knows it: no truth, nobody's counts."""

    config: RunConfig
    classes: tuple[str, ...]
    shared: tuple[str, ...]
    sites: GridClients

    def begin(self, scores: Mapping[str, Score]) -> Outcome:
        self.sites.take_dropped()
        return Outcome(zero_shot=measured(list(scores.values())))

    def round(self, server: ServerState, report: RoundReport) -> tuple[RoundRecord, RefreshRecord | None]:
        record = round_record(report, measured(list(report.scores.values())))
        return replace(record, dropped={**self.sites.take_dropped(), **record.dropped}), None

    def complete(self, outcome: Outcome) -> Outcome:
        method, known = choose_method(self.config), tuple(self.sites.known.numbers)
        return replace(
            outcome,
            name=self.config.name,
            seed=self.config.seed,
            method=method.title,
            trains=method.trains,
            shared=self.shared,
            averaged=method.averaged(),
            sites=known,
            clients=tuple(ClientRecord(name=name) for name in known),
            classes=self.classes,
            template=self.config.model.template,
            settings=self.config.model_dump(),
            versions=versions(),
        )

    def states(self) -> Mapping[str, ClientState]:
        return {}
