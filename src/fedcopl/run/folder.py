"""A run's folder.

| file | what it holds |
|---|---|
| settings.toml | all settings: `fedcopl run settings.toml` repeats the run |
| checkpoint.safetensors | all that `--resume` needs, replaced as a whole after each round |
| states/ | what the clients keep, where there are hundreds: named by the checkpoint, and needed by `--resume` too |
| rounds.jsonl | one line per round, for those who watch |
| progress.json | the outcome so far; gone when the run ends |
| results.json | the outcome |
| examples.json | the images of the report's gallery, small |
| prompts/ | the server's prompts, each client's own in clients/; the priors, and each client's own mix in mixes/ |
| labels/ | what each client believed about its images at each refresh, for `fedcopl review`; never sent |
| ended.txt | why a federation of real sites could not go on; gone when it does |
| skipped.jsonl | images that were left out, and why; only when there are any |
| report.html | the outcome for people |
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
from ..errors import RunFolderError
from ..federation.client_state import ClientState
from ..federation.prior_estimation import PriorState
from ..federation.server import ServerState
from ..files import check_output_folder, make_folders, write_bytes, write_many, write_text
from ..priors.posterior import PosteriorModel
from ..published import load_written
from .checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from .record import Outcome, round_to_plain, to_plain

SETTINGS, ROUNDS, PROGRESS, RESULTS = "settings.toml", "rounds.jsonl", "progress.json", "results.json"
EXAMPLES, REPORT, ENDED, SKIPPED = "examples.json", "report.html", "ended.txt", "skipped.jsonl"
DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)  # files that Windows cannot have
SHARED_PROMPTS = "prompts/server.safetensors"
PRIORS, SITE_PRIOR = "prompts/priors.safetensors", "site_mix"  # what all know; among the arrays: a client's own mix
NAMELESS = "%"  # for no name at all; `quote` makes it of none


class RunFolder:
    """One run's folder, held by one process at a time."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = FileLock(path / ".lock")

    def __enter__(self) -> "RunFolder":
        check_output_folder(self.path)
        try:
            make_folders(self.path)
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise RunFolderError(f"{self.path}: another process is running in this folder") from error
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be used as a run's folder: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if not self._settings.exists():  # it came to nothing: leave no trace
            with suppress(OSError):
                Path(self._lock.lock_file).unlink(missing_ok=True)
                self.path.rmdir()

    def open(self, config: RunConfig, *, resume: bool) -> Checkpoint | None:
        """Make sure that this run may use the folder. The checkpoint to go on from, if there is one."""
        if not self._settings.exists():
            self._check_empty()
            return None
        if not resume:
            raise RunFolderError(
                f"{self.path}: holds a run already; add --resume to go on with it, or choose another --out"
            )
        self._check_same(config, load_written(self._settings))
        return load_checkpoint(self.path)

    def begin(self, config: RunConfig) -> None:
        """From here on the folder is this run's."""
        write_text(self._settings, config.to_toml())

    def _check_empty(self) -> None:
        strange = [entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")]
        if strange:
            raise RunFolderError(f"{self.path}: holds files that are not a run's ({strange[0]}); choose another --out")

    def _check_same(self, wanted: RunConfig, there: RunConfig) -> None:
        old, new = (by_full_name(config.model_dump()) for config in (there, wanted))
        keys = [*old, *(key for key in new if key not in old)]
        changed = [f"{key} is {old.get(key)!r}, not {new.get(key)!r}" for key in keys if old.get(key) != new.get(key)]
        if changed:
            raise RunFolderError(f"{self.path}: was begun with other settings: {'; '.join(changed)}")

    def keep(self, checkpoint: Checkpoint) -> None:
        """After a round: all that is needed to go on, and the outcome so far for those who watch."""
        save_checkpoint(self.path, checkpoint)
        self._write_rounds(checkpoint.outcome)
        self.write_lines(PROGRESS, [to_plain(checkpoint.outcome)])  # on one line: that is written fastest

    def finish(self, checkpoint: Checkpoint) -> None:
        """After the last round: the outcome, and the prompts for others to load."""
        self._write_rounds(checkpoint.outcome)
        self.write_json(RESULTS, to_plain(checkpoint.outcome))
        self.write_prompts(checkpoint.server, checkpoint.clients)
        (self.path / PROGRESS).unlink(missing_ok=True)  # results.json says it all

    def _write_rounds(self, outcome: Outcome) -> None:
        self.write_lines(ROUNDS, map(round_to_plain, outcome.rounds))

    @property
    def _settings(self) -> Path:
        return self.path / SETTINGS

    def write_json(self, name: str, value: Any) -> None:
        write_text(self.path / name, json.dumps(value, indent=1) + "\n")

    def write_lines(self, name: str, values: Iterable[Any]) -> None:
        write_text(self.path / name, "".join(json.dumps(value) + "\n" for value in values))

    def write_text(self, name: str, text: str) -> None:
        write_text(self.path / name, text)

    def write_prompts(self, server: ServerState, clients: Mapping[str, ClientState]) -> None:
        """What is shared once, what is personal once per client."""
        if server.prior_model is not None:
            write_bytes(self.path / PRIORS, save(server.prior_model.to_arrays()))
        write_bytes(self.path / SHARED_PROMPTS, save(dict(server.shared)))
        write_many(file for client, state in clients.items() for file in self._own_files(client, state, server))

    def _own_files(self, client: str, state: ClientState, server: ServerState) -> Iterator[tuple[Path, bytes]]:
        """A client's prompts, and in what mix it holds the classes."""
        own = {name: value for name, value in state.begun.items() if name not in server.shared} | dict(state.own)
        yield own_prompts_file(self.path, client), save(own)
        if state.prior.class_prior is not None:
            yield class_prior_path(self.path, client), save(_own_prior(state.prior, server.prior_model))


def _own_prior(prior: PriorState, pooled: PosteriorModel | None) -> dict[str, NDArray[np.float64]]:
    """A client's own class prior; the model too only if it is not that of the server."""
    assert prior.model is not None and prior.class_prior is not None
    arrays, known = prior.model.to_arrays(), {} if pooled is None else pooled.to_arrays()
    same = arrays.keys() == known.keys() and all(np.array_equal(arrays[name], known[name]) for name in arrays)
    return {SITE_PRIOR: prior.class_prior} | ({} if same else arrays)


def own_prompts_file(folder: Path, client: str) -> Path:
    """Where a client's own prompts are kept."""
    return folder / "prompts/clients" / f"{file_name(client)}.safetensors"


def class_prior_path(folder: Path, client: str) -> Path:
    """Where a client's mix of classes is kept."""
    return folder / "prompts/mixes" / f"{file_name(client)}.safetensors"


def file_name(client: str) -> str:
    """A name fit for a file, or a folder: a site or a server may call itself anything, "..", or a whole sentence.

    Other names, other files. None begins with a dot, ends in what Windows leaves away, or is the name of a device.
    """
    safe = quote(client, safe=" ", errors="surrogateescape")
    if safe[:1] == "." or DEVICE.match(safe):
        safe = _escaped(safe[0]) + safe[1:]
    if safe[-1:] in {".", " "}:
        safe = safe[:-1] + _escaped(safe[-1])
    return (safe or NAMELESS) if len(safe) <= 100 else f"{safe[:80]}~{sha256(safe.encode()).hexdigest()[:16]}"


def _escaped(letter: str) -> str:
    return f"%{ord(letter):02X}"
