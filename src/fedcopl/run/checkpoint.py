"""A run between two rounds, in one file: all that `--resume` needs, replaced as a whole after each round."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..errors import RunFolderError
from ..federation.client import ClientState
from ..federation.server import ServerState
from ..federation.state_arrays import Tensors, below, state_from, state_tensors
from ..files import write_bytes
from .record import Outcome, to_plain
from .record_reader import read_outcome

CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """The states of both sides, and the outcome so far. A real server has no states of its sites."""

    server: ServerState
    clients: Mapping[str, ClientState]
    outcome: Outcome


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
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
        "left_out": dict(server.left_out),
        "clients": tuple(clients),
    }
    # The header of a safetensors file is limited in size; the records of a long run are not.
    tensors["records"] = np.frombuffer(json.dumps(to_plain(checkpoint.outcome)).encode(), np.uint8)
    write_bytes(folder / CHECKPOINT, save(tensors, {"about": json.dumps(about)}))


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """None if no round is finished. Those of version 0.1 are read too: they say less about the run."""
    file = folder / CHECKPOINT
    if not file.exists():
        return None
    try:
        return _checkpoint(*_read(file))
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise RunFolderError(f"{file}: is damaged and cannot be resumed from: {error}") from error


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
    )
    clients = _by_client(tensors, "client/", about["clients"])
    states = {client: state_from(own) for client, own in clients.items()}
    outcome = read_outcome(json.loads(tensors["records"].tobytes())).outcome
    if len(outcome.rounds) != server.round:
        raise ValueError(f"it tells of {len(outcome.rounds)} rounds, and is after round {server.round}")
    return Checkpoint(server, states, outcome)


def _by_client(tensors: Tensors, prefix: str, clients: list[str]) -> dict[str, Tensors]:
    """What is filed under each client's number; names may hold anything, so they are not part of the keys."""
    by_number: list[Tensors] = [{} for _ in clients]
    for key, value in below(tensors, prefix).items():
        number, name = key.split("/", 1)
        by_number[int(number)][name] = value
    return dict(zip(clients, by_number, strict=True))
