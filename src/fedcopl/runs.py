"""A run's folder.

| file | what it holds |
|---|---|
| settings.toml | all settings: `fedcopl run settings.toml` repeats the run |
| checkpoint.safetensors | all that `--resume` needs, replaced as a whole after each round |
| rounds.jsonl | one line per round, for those who watch |
| results.json | the outcome |
| prompts/ | the server's prompts, and each client's own in clients/ |
| skipped.jsonl | images that were left out, and why; only when there are any |
| report.html | the outcome for people |
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .client import ClientState
from .config import RunConfig, load
from .errors import RunFolderError
from .files import write_bytes, write_text
from .protocol import ServerState
from .states import Tensors, below, state_from, state_tensors


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds: the states of both sides, and the records so far."""

    server: ServerState
    clients: Mapping[str, ClientState]
    records: Mapping[str, Any]


class RunFolder:
    """One run's folder, held by one process at a time."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = FileLock(path / ".lock")

    def __enter__(self) -> "RunFolder":
        try:
            self.path.mkdir(parents=True, exist_ok=True)
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
        self._check_same(config, load(self._settings))
        return self.load_checkpoint()

    def begin(self, config: RunConfig) -> None:
        """From here on the folder is this run's."""
        write_text(self._settings, config.to_toml())

    def _check_empty(self) -> None:
        strange = [entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")]
        if strange:
            raise RunFolderError(f"{self.path}: holds files that are not a run's ({strange[0]}); choose another --out")

    def _check_same(self, wanted: RunConfig, there: RunConfig) -> None:
        old, new = _flat(there), _flat(wanted)
        keys = [*old, *(key for key in new if key not in old)]
        changed = [f"{key} is {old.get(key)!r}, not {new.get(key)!r}" for key in keys if old.get(key) != new.get(key)]
        if changed:
            raise RunFolderError(f"{self.path}: was begun with other settings: {'; '.join(changed)}")

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        server, clients = checkpoint.server, checkpoint.clients
        tensors = {f"server/{name}": value for name, value in server.shared.items()}
        for number, state in enumerate(clients.values()):
            tensors |= {f"client/{number}/{name}": value for name, value in state_tensors(state).items()}
        for number, upload in enumerate(server.uploads.values()):
            tensors |= {f"upload/{number}/{name}": value for name, value in upload.items()}
        about = {
            "round": server.round,
            "classes": server.classes,
            "members": server.members,
            "everyone_first": server.everyone_first,
            "neighbours": server.neighbours,
            "uploads": tuple(server.uploads),
            "clients": tuple(clients),
        }
        # The header of a safetensors file is limited in size; the records of a long run are not.
        tensors["records"] = np.frombuffer(json.dumps(checkpoint.records).encode(), np.uint8)
        write_bytes(self._checkpoint, save(tensors, {"about": json.dumps(about)}))

    def load_checkpoint(self) -> Checkpoint | None:
        if not self._checkpoint.exists():
            return None
        try:
            tensors, about = _read(self._checkpoint)
            return _checkpoint(tensors, about)
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise RunFolderError(f"{self._checkpoint}: is damaged and cannot be resumed from: {error}") from error

    @property
    def _settings(self) -> Path:
        return self.path / "settings.toml"

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    def write_json(self, name: str, value: Any) -> None:
        write_text(self.path / name, json.dumps(value, indent=1) + "\n")

    def write_lines(self, name: str, values: list[Any]) -> None:
        write_text(self.path / name, "".join(json.dumps(value) + "\n" for value in values))

    def write_text(self, name: str, text: str) -> None:
        write_text(self.path / name, text)

    def write_prompts(self, server: ServerState, clients: Mapping[str, ClientState]) -> None:
        """The outcome for others to load: what is shared once, what is personal once per client."""
        write_bytes(self.path / "prompts" / "server.safetensors", save(dict(server.shared)))
        for client, state in clients.items():
            write_bytes(self.path / "prompts/clients" / f"{file_name(client)}.safetensors", save(dict(state.own)))


def file_name(client: str) -> str:
    """A name fit for a file: a site may call itself anything, "../x", or a whole sentence."""
    safe = quote(client, safe=" ", errors="surrogateescape")
    return safe if len(safe) <= 100 else f"{safe[:80]}~{sha256(safe.encode()).hexdigest()[:16]}"


def _flat(config: RunConfig) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.model_dump().items():
        flat |= {f"{key}.{leaf}": v for leaf, v in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _read(path: Path) -> tuple[Tensors, dict[str, Any]]:
    with safe_open(path, framework="numpy") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()["about"])  # noqa: SIM118


def _checkpoint(tensors: Tensors, about: dict[str, Any]) -> Checkpoint:
    server = ServerState(
        about["round"],
        below(tensors, "server/"),
        about["classes"],
        tuple(about["members"]),
        about["everyone_first"],
        about["neighbours"],
        _by_client(tensors, "upload/", about["uploads"]),
    )
    clients = _by_client(tensors, "client/", about["clients"])
    states = {client: state_from(own) for client, own in clients.items()}
    return Checkpoint(server, states, json.loads(tensors["records"].tobytes()))


def _by_client(tensors: Tensors, prefix: str, clients: list[str]) -> dict[str, Tensors]:
    """What is filed under each client's number; names may hold anything, so they are not part of the keys."""
    by_number: list[Tensors] = [{} for _ in clients]
    for key, value in below(tensors, prefix).items():
        number, name = key.split("/", 1)
        by_number[int(number)][name] = value
    return dict(zip(clients, by_number, strict=True))
