"""The server's side of a real federation: rounds over a grid, a checkpoint after each, and what an operator can watch.

Nothing here needs an image or a label. Beside the files of every run's folder (`fedcopl.runs`) there is `server.json`:
the name the run has for its sites, how often the server was started, and the number of every site.
"""

import json
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from ...config import RunConfig
from ...data.classes import clean_all, read_classes
from ...data.records import TEMPLATE
from ...errors import ConfigError, NoClientAnswered, RunFolderError
from ...files import write_text
from ...model.methods import choose_method
from ...privacy_account import release_records, require_accounting, statement
from ...protocol import RoundReport, ServerState, refuse_privacy, run, zero_shot_scores
from ...report.page import write_page
from ...runs import ENDED, Checkpoint, RunFolder
from ..assembly import first_state
from ..audit import accuracy_record
from ..guarding import guard_record
from ..simulation import versions
from ..watcher import Watcher
from .federation import GridFederation
from .roster import Known
from .run_settings import Plan
from .site import model_name, own_clip
from .terms import terms_of

Results = dict[str, Any]
LABELLED = ("macro", "weighted", "global")


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


def serve(grid: Grid, plan: Plan, watcher: Watcher, should_stop: Callable[[], bool] = lambda: False) -> Results:
    """Play the rounds that are left with the sites of this grid, and write everything into the plan's folder."""
    classes, config = server_classes(plan), server_config(plan)
    with RunFolder(plan.out) as place:
        checkpoint = place.open(config, resume=plan.resume)
        watcher.preparing("loading the model")
        server, model = first_server(config, len(classes))
        place.begin(config)
        place.write_text("classes.txt", "\n".join(classes) + "\n")
        file = ServerFile.begin(place.path / "server.json", config.name)
        terms = terms_of(file.run, file.attempt, config, classes, model)
        federation = GridFederation(grid, terms, file.known, plan.patience, watcher, should_stop)
        sites = federation.begin()
        watcher.started(config, len(sites), checkpoint.server.round if checkpoint else 0)

        def outcome(records: Mapping[str, Any]) -> Results:
            told = outcome_of(config, records, classes, list(file.known.numbers))
            return told | {"shared": list(server.shared)}

        with _why_it_ends(place):
            checkpoint = checkpoint or Checkpoint(server, {}, _first_records(federation))
            checkpoint = _play(config, place, federation, checkpoint, watcher, outcome)
        return _finish(place, checkpoint, outcome(checkpoint.records))


@contextmanager
def _why_it_ends(place: RunFolder) -> Iterator[None]:
    """Write down why the sites could not go on, for `fedcopl status` and `watch`; the terminal may be gone by then."""
    (place.path / ENDED).unlink(missing_ok=True)
    try:
        yield
    except NoClientAnswered as error:
        place.write_text(ENDED, f"{error}\n")
        raise


def check(plan: Plan) -> None:
    """Every mistake that can be found before anybody is let in."""
    server_classes(plan)
    require_accounting(plan.config)
    refuse_privacy(plan.config, choose_method(plan.config).neighbours())
    own_clip(plan.config.model)
    with RunFolder(plan.out) as place:
        place.open(server_config(plan), resume=plan.resume)


def server_classes(plan: Plan) -> tuple[str, ...]:
    if plan.classes_file is None:
        raise ConfigError("classes: name the file with the class names, one a line; the sites need the same one")
    return clean_all(read_classes(plan.classes_file), plan.classes_file)


def server_config(plan: Plan) -> RunConfig:
    """The settings with the sentence written out: sites must not choose their own."""
    model = plan.config.model.model_copy(update={"template": plan.config.model.template or TEMPLATE})
    return plan.config.model_copy(update={"model": model})


def first_server(config: RunConfig, classes: int) -> tuple[ServerState, str]:
    """Where the server begins, and which model that is for."""
    method, clip = choose_method(config), own_clip(config.model)
    return first_state(method, method.start(clip), classes), model_name(config.model.backbone, clip)


def _first_records(federation: GridFederation) -> dict[str, Any]:
    scores = zero_shot_scores(federation)
    federation.take_dropped()
    return {"zero_shot": accuracy_record(list(scores.values()), None), "rounds": [], "refreshes": [], "seconds": 0.0}


def _play(
    config: RunConfig,
    place: RunFolder,
    federation: GridFederation,
    checkpoint: Checkpoint,
    watcher: Watcher,
    outcome: Callable[[Mapping[str, Any]], Results],
) -> Checkpoint:
    records, began = dict(checkpoint.records), time.monotonic()
    spent = records["seconds"]

    def after_round(server: ServerState, report: RoundReport) -> None:
        records["seconds"] = spent + time.monotonic() - began
        record = round_record(report, federation.take_dropped()) | {"seconds": records["seconds"]}
        records["rounds"] = [*records["rounds"], record]
        place.save_checkpoint(Checkpoint(server, {}, records))
        place.write_lines("rounds.jsonl", records["rounds"])
        place.write_json("progress.json", outcome(records))
        watcher.round_done(record)

    server = run(config, federation, checkpoint.server, after_round)
    return Checkpoint(server, {}, records)


def round_record(report: RoundReport, dropped: Mapping[str, str]) -> dict[str, Any]:
    """One line of rounds.jsonl: what an operator can know without a label, and accuracy where sites have some."""
    return {
        "round": report.round,
        "refreshed": report.refreshed,
        "totals": None if report.totals is None else report.totals.tolist(),
        "labelling": asdict(report.labelling) if report.labelling else None,
        "participants": len(report.participants),
        "sites": list(report.participants),
        "examples": report.examples,
        "loss": None if math.isnan(report.loss) else report.loss,
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "kept_old_prompt": report.kept_old_prompt,
        "guard": guard_record(report),
        "dropped": {**dropped, **report.dropped},
        "releases": release_records(report.releases),
        **accuracy_record(list(report.scores.values()), None),
    }


def outcome_of(config: RunConfig, records: Mapping[str, Any], classes: tuple[str, ...], sites: list[str]) -> Results:
    """The outcome so far as plain data, as far as a server knows it; `fedcopl report` and `watch` read it."""
    rounds = records["rounds"]
    return {
        "name": config.name,
        "seed": config.seed,
        "sites": sites,
        "classes": list(classes),
        "template": config.model.template,
        "zero_shot": {kind: records["zero_shot"][kind] for kind in LABELLED},
        "final": {kind: rounds[-1][kind] for kind in LABELLED} | {"round": rounds[-1]["round"]},
        "bytes_up": sum(record["bytes_up"] for record in rounds),
        "bytes_down": sum(record["bytes_down"] for record in rounds),
        "seconds": records["seconds"],
        "privacy": statement(config, rounds),
        "rounds": rounds,
        "settings": config.model_dump(),
        "versions": versions(),
    }


def _finish(place: RunFolder, checkpoint: Checkpoint, outcome: Results) -> Results:
    place.write_lines("rounds.jsonl", outcome["rounds"])
    place.write_json("results.json", outcome)
    place.write_prompts(checkpoint.server, {})
    write_page(place.path / "report.html", outcome, [])
    (place.path / "progress.json").unlink(missing_ok=True)  # results.json says it all
    return outcome
