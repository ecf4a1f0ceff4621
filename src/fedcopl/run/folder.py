"""The folder of a run: its lock, its files and their readers.

| file | content |
|---|---|
| settings.toml | all settings: `fedcopl run settings.toml` repeats the run |
| checkpoint.safetensors | everything that `--resume` needs, replaced after each round |
| rounds.jsonl | one line per round |
| progress.json | the outcome so far; removed when the run ends |
| results.json | the outcome |
| examples.json | thumbnails for the gallery of the report |
| prompts/ | the shared prompts, each client's own in clients/; the priors, and each client's own in class_priors/ |
| labels/ | the pseudo labels of each client at each refresh, for `fedcopl review`; never sent |
| ended.txt | the reason for which a deployment stopped; removed when it is resumed |
| images.txt | number and digest of the images, which must not change when a run is resumed |
| skipped.jsonl | unreadable images with the reasons; only if there are any |
| report.html | the report |
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors.numpy import save

from ..config import RunConfig, by_full_name
from ..config import load as load_config
from ..errors import RunFolderError
from ..federation.client_state import ClientState, same_arrays
from ..federation.prior_estimation import PriorState
from ..federation.server import ServerState
from ..files import (
    check_output_folder,
    make_folders,
    no_folder,
    parse_json,
    read_limited,
    write_bytes,
    write_many,
    write_text,
)
from ..priors.posterior import PosteriorModel
from .checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from .record import Outcome, RoundRecord, adapter, read_outcome, round_to_plain, to_plain

SETTINGS, ROUNDS, PROGRESS, RESULTS = "settings.toml", "rounds.jsonl", "progress.json", "results.json"
EXAMPLES, REPORT, ENDED, SKIPPED = "examples.json", "report.html", "ended.txt", "skipped.jsonl"
_IMAGES = "images.txt"
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)  # reserved file names of Windows
SHARED_PROMPTS = "prompts/server.safetensors"
PRIORS, SITE_PRIOR = "prompts/priors.safetensors", "site_class_prior"  # file of the common priors, array of a client's
_SEARCH_DEPTH = 3  # levels of folders in which `find_runs` searches
_NAMELESS = "%"  # file name of a client with an empty name; `quote` never returns it


class RunFolder:
    """The folder of one run, locked while a process uses it."""

    def __init__(self, path: Path):
        self.path = path
        self._lock, self._settings = FileLock(path / ".lock"), path / SETTINGS

    def __enter__(self) -> "RunFolder":
        check_output_folder(self.path)
        try:
            make_folders(self.path)
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise RunFolderError(f"{self.path}: another process is running in this folder; wait for its end") from error
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be used as a run's folder: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if not self._settings.exists():  # the run did not start: remove the folder again
            with suppress(OSError):
                Path(self._lock.lock_file).unlink(missing_ok=True)
                self.path.rmdir()

    def open(self, config: RunConfig, *, resume: bool) -> Checkpoint | None:
        """Check that this run may use the folder, and return the checkpoint to resume from, if there is one.

        Raises:
            RunFolderError: The folder has other files, a run with other settings, or a run and `resume` is not set.
        """
        if not self._settings.exists():
            if foreign := [entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")]:
                raise RunFolderError(
                    f"{self.path}: has files that do not belong to a run ({foreign[0]}); choose another --out"
                )
            return None
        if not resume:
            raise RunFolderError(f"{self.path}: already has a run; add --resume to resume it, or choose another --out")
        old, new = (by_full_name(settings.model_dump()) for settings in (load_config(self._settings), config))
        keys = [*old, *(key for key in new if key not in old)]
        changed = [f"{key} is {old.get(key)!r}, not {new.get(key)!r}" for key in keys if old.get(key) != new.get(key)]
        if changed:
            raise RunFolderError(f"{self.path}: was started with other settings: {'; '.join(changed)}")
        return load_checkpoint(self.path)

    def begin(self, config: RunConfig) -> None:
        """Write the settings, which mark the folder as that of this run."""
        write_text(self._settings, config.to_toml())

    def pin_images(self, digest: str, *, is_new: bool) -> None:
        """Write number and digest of the images; RunFolderError if a resumed run has other images."""
        file = self.path / _IMAGES
        stored = file.read_text(encoding="utf-8").strip() if file.exists() and not is_new else digest
        if stored != digest:
            raise RunFolderError(
                f"{self.path}: was started with other images ({stored}; now {digest}); restore them or start a new run"
            )
        write_text(file, f"{digest}\n")

    def write_round(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint after a round and the outcome so far."""
        save_checkpoint(self.path, checkpoint)
        self.write_lines(ROUNDS, map(round_to_plain, checkpoint.outcome.rounds))
        self.write_lines(PROGRESS, [to_plain(checkpoint.outcome)])  # without indentation, which is slower

    def finish(self, checkpoint: Checkpoint) -> None:
        """Write the outcome and the prompts after the last round."""
        self.write_lines(ROUNDS, map(round_to_plain, checkpoint.outcome.rounds))
        self.write_json(RESULTS, to_plain(checkpoint.outcome))
        self.write_prompts(checkpoint.server, checkpoint.clients)
        (self.path / PROGRESS).unlink(missing_ok=True)

    def write_json(self, name: str, value: Any) -> None:
        write_text(self.path / name, json.dumps(value, indent=1) + "\n")

    def write_lines(self, name: str, values: Iterable[Any]) -> None:
        write_text(self.path / name, "".join(json.dumps(value) + "\n" for value in values))

    def write_text(self, name: str, text: str) -> None:
        write_text(self.path / name, text)

    def write_prompts(self, server: ServerState, clients: Mapping[str, ClientState]) -> None:
        """Write the shared prompts, the priors, and each client's own arrays."""
        if server.prior_model is not None:
            write_bytes(self.path / PRIORS, save(server.prior_model.to_arrays()))
        write_bytes(self.path / SHARED_PROMPTS, save(dict(server.shared)))
        write_many(file for client, state in clients.items() for file in self._own_files(client, state, server))

    def _own_files(self, client: str, state: ClientState, server: ServerState) -> Iterator[tuple[Path, bytes]]:
        """Yield path and content of the files of a client's prompts and class prior."""
        own = {name: value for name, value in state.previous_model.items() if name not in server.shared}
        yield own_prompts_file(self.path, client), save({**own, **state.own})
        if state.prior.class_prior is not None:
            yield class_prior_file(self.path, client), save(_own_prior(state.prior, server.prior_model))


def _own_prior(prior: PriorState, server_model: PosteriorModel | None) -> dict[str, NDArray[np.float64]]:
    """Return a client's class prior, and its posterior model only if it differs from the server's."""
    assert prior.model is not None and prior.class_prior is not None
    arrays, server_arrays = prior.model.to_arrays(), {} if server_model is None else server_model.to_arrays()
    return {SITE_PRIOR: prior.class_prior} | ({} if same_arrays(arrays, server_arrays) else arrays)


def own_prompts_file(folder: Path, client: str) -> Path:
    return folder / "prompts/clients" / f"{file_name(client)}.safetensors"


def class_prior_file(folder: Path, client: str) -> Path:
    return folder / "prompts/class_priors" / f"{file_name(client)}.safetensors"


def file_name(client: str) -> str:
    """Return a unique, safe file name for a client, whose own name may be any text, such as "..".

    The result does not start with a dot, does not end in a dot or blank, and is no device name of Windows.
    """
    safe = quote(client, safe=" ", errors="surrogateescape")
    if safe[:1] == "." or _DEVICE.match(safe):
        safe = f"%{ord(safe[0]):02X}{safe[1:]}"
    if safe[-1:] in {".", " "}:
        safe = f"{safe[:-1]}%{ord(safe[-1]):02X}"
    return (safe or _NAMELESS) if len(safe) <= 100 else f"{safe[:80]}~{sha256(safe.encode()).hexdigest()[:16]}"


class NoFinishedRound(RunFolderError):
    """A run has no finished round yet."""


def find_runs(folder: Path) -> list[Path]:
    """Return the folder if it is that of a run, otherwise all runs below it, sorted by name.

    Raises:
        RunFolderError: There is no run.
    """
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: {no_folder(folder)}; name the folder of a run")
    runs = sorted(_runs_in(folder, _SEARCH_DEPTH))
    if not runs:
        raise RunFolderError(f"{folder}: has no run: there is no {RESULTS} or {SETTINGS} in it or below")
    return runs


def _runs_in(folder: Path, depth: int) -> Iterator[Path]:
    if any((folder / name).is_file() for name in (RESULTS, PROGRESS, SETTINGS)):
        yield folder
    elif depth:
        subfolders: list[Path] = []
        with suppress(OSError):  # folders without read permission
            subfolders = [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir()]
        for subfolder in subfolders:
            yield from _runs_in(subfolder, depth - 1)


def read_finished(folder: Path) -> Outcome:
    """Return the outcome of a finished run.

    Raises:
        RunFolderError: The run is not finished, or its outcome is damaged.
    """
    if not (folder / RESULTS).exists():
        raise RunFolderError(f"{folder}: the run is not finished; resume it with: fedcopl run --out {folder} --resume")
    return _read_outcome_file(folder / RESULTS)


def read_so_far(folder: Path) -> Outcome:
    """Return the outcome of a run with its finished rounds.

    Raises:
        NoFinishedRound: No round is finished.
        RunFolderError: The outcome is damaged.
    """
    file = next((path for name in (RESULTS, PROGRESS) if (path := folder / name).is_file()), None)
    if file is None:
        raise NoFinishedRound(f"{folder}: no round of this run is finished, so there is nothing to report yet")
    return _read_outcome_file(file)


def read_rounds(folder: Path) -> tuple[RoundRecord, ...]:
    """Return the finished rounds of a run from rounds.jsonl; none without the file.

    Raises:
        RunFolderError: The file is damaged.
    """
    file = folder / ROUNDS
    if not file.is_file():
        return ()
    try:
        return tuple(adapter(RoundRecord).validate_python(parse_json(line)) for line in read_limited(file).splitlines())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file}: cannot be read: {str(error).splitlines()[0]}") from error


def _read_outcome_file(file: Path) -> Outcome:
    try:
        outcome = read_outcome(parse_json(read_limited(file)))
        for key in ("name", "classes", "rounds", "settings"):
            if not getattr(outcome, key):
                raise ValueError(f"{key} is missing or empty")
    except OSError as error:
        raise RunFolderError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RunFolderError(
            f"{file}: is damaged: {error}; `fedcopl run --out {file.parent} --resume` writes it again"
        ) from error
    return outcome
