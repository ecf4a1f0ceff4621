"""A run's folder.

| file | what it holds |
|---|---|
| settings.toml | all settings: `fedcopl run settings.toml` repeats the run |
| checkpoint.safetensors | all that `--resume` needs, replaced as a whole after each round |
| rounds.jsonl | one line per round, for those who watch |
| progress.json | the outcome so far; gone when the run ends |
| results.json | the outcome |
| examples.json | the images of the report's gallery, small |
| prompts/ | the server's prompts, and each client's own in clients/ |
| labels/ | what each client believed about its images at each refresh, for `fedcopl review`; never sent |
| ended.txt | why a federation of real sites could not go on; gone when it does |
| skipped.jsonl | images that were left out, and why; only when there are any |
| report.html | the outcome for people |
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .client import ClientState
from .config import RunConfig, load
from .data.dataset import ImageSet
from .data.images import ImageFiles
from .errors import RunFolderError
from .files import write_bytes, write_text
from .protocol import ServerState
from .states import Tensors, below, state_from, state_tensors

LABELS = "labels"
ENDED = "ended.txt"
SUREST = 5  # classes of each image that are written down
DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)  # files that Windows cannot have
NAMELESS = "%"  # for no name at all; `quote` makes it of none
CHUNK = 4096  # images looked at together, to need little memory


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
        tensors |= {f"good/{name}": value for name, value in (server.good or {}).items()}
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
            "left_out": dict(server.left_out),
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
        about.get("left_out", {}),
        below(tensors, "good/") or None,
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


class Labels(NamedTuple):
    """What one client believed about its images at one refresh, the surest class first."""

    round: int
    classes: NDArray[np.int32]  # (n, at most SUREST)
    log_probability: NDArray[np.float32]  # of each of them


class Held(NamedTuple):
    """The images of one client, in its order. At home only."""

    names: list[str]
    files: list[str] | None  # where they lie, if they are files


def write_images(folder: Path, classes: Sequence[str], images: ImageSet, parts: Mapping[str, NDArray[Any]]) -> None:
    """The names of the classes, and which images each client holds: `parts` are their places among all."""
    stored = images.images
    paths = [str(path.absolute()) for path in stored.paths] if isinstance(stored, ImageFiles) else None
    held = {
        client: Held([images.names[place] for place in part], paths and [paths[place] for place in part])._asdict()
        for client, part in parts.items()
    }
    write_text(folder / LABELS / "images.json", json.dumps({"classes": list(classes), "clients": held}) + "\n")


def write_labels(folder: Path, round: int, log_probs: Mapping[str, NDArray[np.float64]]) -> None:
    """What each client believes at this refresh, log p_c(x) of all its images (n, C), in a file of its own."""
    tensors: Tensors = {}
    for number, belief in enumerate(log_probs.values()):
        tensors[f"client/{number}/classes"], tensors[f"client/{number}/log_probability"] = _surest(belief)
    path = folder / LABELS / f"round-{round:06}.safetensors"
    write_bytes(path, save(tensors, {"about": json.dumps({"round": round, "clients": list(log_probs)})}))


def _surest(log_probs: NDArray[np.float64]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The likeliest classes of each image, of equals the lower one; -inf where there is no further one."""
    many = min(SUREST, log_probs.shape[1])
    classes, values = np.zeros((len(log_probs), many), np.int32), np.zeros((len(log_probs), many), np.float32)
    for start in range(0, len(log_probs), CHUNK):
        left = np.array(log_probs[start : start + CHUNK])
        every = np.arange(len(left))
        for place in range(many):
            best = left.argmax(axis=1)
            classes[start + every, place], values[start + every, place] = best, left[every, best]
            left[every, best] = -np.inf
    return classes, values


def read_images(folder: Path) -> tuple[tuple[str, ...], dict[str, Held]]:
    """The names of the classes, and what each client holds."""
    file = folder / LABELS / "images.json"
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return tuple(stored["classes"]), {client: Held(**held) for client, held in stored["clients"].items()}
    except FileNotFoundError as error:
        raise RunFolderError(f"{folder}: holds no labels; a run writes them into {LABELS}/ as it starts") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{file}: cannot be read: {error}") from error


def read_labels(folder: Path, client: str) -> list[Labels]:
    """What a client believed at each refresh so far, the first one first."""
    files = sorted((folder / LABELS).glob("round-*.safetensors"))
    return [labels for labels in (_labels_in(file, client) for file in files) if labels is not None]


def _labels_in(file: Path, client: str) -> Labels | None:
    try:
        with safe_open(file, framework="numpy") as stored:
            about = json.loads(stored.metadata()["about"])
            if client not in about["clients"]:
                return None
            place = f"client/{about['clients'].index(client)}"
            arrays = (stored.get_tensor(f"{place}/{name}") for name in ("classes", "log_probability"))
            return Labels(about["round"], *arrays)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise RunFolderError(f"{file}: is damaged: {error}") from error
