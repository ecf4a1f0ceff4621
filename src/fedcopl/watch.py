"""`fedcopl watch`: the report of a run or of a folder of runs, served live."""

import statistics
import time
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from .deployment.processes import process_of
from .errors import FederationError, RunFolderError, printable
from .local_page.access import AccessControl, Keys
from .local_page.serving import file_route
from .plurals import counted
from .report.comparison import ComparedRun, render_comparison
from .report.curves import seconds_by_round
from .report.formatting import duration
from .report.run_page import LiveStatus, render_folder, template
from .run.folder import ENDED, EXAMPLES, PROGRESS, RESULTS, ROUNDS, SETTINGS, NoFinishedRound, find_runs, read_so_far
from .run.record import Outcome

_FILES = (SETTINGS, PROGRESS, RESULTS, EXAMPLES, ENDED, "review")
_SILENT_SECONDS = 60.0  # a run is silent after this time without a new round,
_SILENT_ROUNDS = 4  # and after this multiple of the median duration of a round
_MAX_MISSING = 5  # missing clients named in the status
_POLICY = (
    "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class LivePage:
    """Serves the report of a folder, and renders it again after a change of a file or of the status."""

    def __init__(self, folder: Path, keys: Keys):
        self._folder, self._keys = folder, keys
        self._version = self._page = ""
        self._shown: list[ComparedRun] = []

    def app(self) -> ASGIApp:
        routes = [Route("/", self.show), *map(file_route, ("icon.svg", "live.js"))]
        return AccessControl(Starlette(routes=routes), self._keys, writes=False, policy=_POLICY)

    def show(self, request: Request) -> Response:
        """Return the page, or status 204 if the browser has this version."""
        self._render_if_changed()
        if request.query_params.get("seen") == self._version:
            return Response(status_code=204)
        return HTMLResponse(self._page)

    def _render_if_changed(self) -> None:
        try:
            folders = find_runs(_runs_folder(self._folder))
            self._shown = _read_runs(folders)
            state, text = _status(self._shown[0]) if len(self._shown) == 1 else _overall_status(self._shown)
        except NoFinishedRound:
            folders, self._shown = [self._folder], []
            state, text = _stopped_status(self._folder) or ("waiting", "Waiting for the first round to end.")
        except RunFolderError as error:
            folders = [run.folder for run in self._shown]
            state, text = "missing", f"{printable(str(error))}. The page shows the last readable state."
        signature = repr((state, text, [_stat(folder / name) for folder in folders for name in _FILES]))
        version = sha256(signature.encode()).hexdigest()[:16]
        if version != self._version:
            self._page, self._version = self._render(LiveStatus(version, state, text)), version

    def _render(self, live: LiveStatus) -> str:
        if not self._shown:
            title = printable(self._folder.resolve().name)
            return template("base.html.jinja").render(title=title, live=live, sections=[])
        if len(self._shown) == 1:
            run = self._shown[0]
            done = len(run.outcome.rounds)
            planned = done if run.outcome.is_complete else run.outcome.planned_rounds
            page = render_folder(run.folder, run.outcome, replace(live, done=done, planned=planned))
        else:
            page = render_comparison(self._shown, live)
        return page.encode("utf-8", "backslashreplace").decode("utf-8")  # file names may have invalid bytes


def _runs_folder(folder: Path) -> Path:
    """Return the folder itself; for the folder of a server or a site, the folder of its runs."""
    with suppress(FederationError):
        about = process_of(folder).details
        return Path(about["out"]).parent if "out" in about else folder / "runs"
    return folder


def _read_runs(folders: list[Path]) -> list[ComparedRun]:
    """Return all runs with a finished round, the most recently written last.

    Raises:
        NoFinishedRound: No run has a finished round.
    """
    runs = []
    for folder in folders:
        with suppress(NoFinishedRound):
            runs.append(ComparedRun(folder, read_so_far(folder)))
    if not runs:
        raise NoFinishedRound("no run has a finished round")
    return sorted(runs, key=lambda run: _last_written(run.folder))


def _status(run: ComparedRun) -> tuple[str, str]:
    """Return state and text of a run: finished, stopped, silent or running."""
    done, planned = len(run.outcome.rounds), run.outcome.planned_rounds
    if (run.folder / RESULTS).is_file() and run.outcome.is_complete:
        early = f" of {planned}; training no longer improved" if done < planned else " done"
        return "finished", f"Finished: {counted(done, 'round')}{early}, {duration(run.outcome.seconds)}."
    stopped = _stopped_status(run.folder)
    if stopped:
        return stopped
    written = _last_written(run.folder)
    round_seconds = statistics.median(seconds_by_round(run.outcome).values())
    clock_time = time.strftime("%H:%M:%S", time.localtime(written))
    if time.time() - written > max(_SILENT_SECONDS, _SILENT_ROUNDS * round_seconds):
        return (
            "silent",
            f"Round {done} of {planned} ended at {clock_time}; no round since then. Check that the process is running.",
        )
    left = f", about {duration(round_seconds * (planned - done))} left" if planned > done else ""
    missing = _missing_clients(run.outcome)
    return "running", f"Running: round {done} of {planned} is done{left}. Last round at {clock_time}.{missing}"


def _missing_clients(outcome: Outcome) -> str:
    """Return a sentence with the clients without a reply in the last round; empty if all replied or it is unknown."""
    last = outcome.rounds[-1]
    missing = [client.name for client in outcome.clients if last.sites is not None and client.name not in last.sites]
    named = [*missing[:_MAX_MISSING], *([f"{len(missing) - _MAX_MISSING} more"] if len(missing) > _MAX_MISSING else [])]
    return f" Missing in round {last.number}: {', '.join(named)}." if missing else ""


def _overall_status(runs: list[ComparedRun]) -> tuple[str, str]:
    states = [_status(run)[0] for run in runs]
    named = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return "running" if "running" in states else "finished", f"{counted(len(runs), 'run')}: {', '.join(named)}."


def _stopped_status(folder: Path) -> tuple[str, str] | None:
    """Return state and text of a server that stopped before the last round; None without a recorded reason."""
    with suppress(OSError):
        reason = (folder / ENDED).read_text(encoding="utf-8", errors="replace").strip()
        return "stopped", f"Stopped early: {reason}. Start it again with --resume to continue."
    return None


def _last_written(folder: Path) -> float:
    """Return the time of the last written round, in seconds since 1970."""
    stats = [_stat(folder / name) for name in (PROGRESS, RESULTS, ROUNDS)]
    return max((stat[0] / 1e9 for stat in stats if stat), default=0.0)


def _stat(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        stat = path.stat()
        return stat.st_mtime_ns, stat.st_size
    return None
